"""`doctor`: prints what was looked at, and says by its exit code how bad it is."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict

import typer

from mailroom import doctor
from mailroom.cli.output import as_json, say, table
from mailroom.doctor import Check, Status
from mailroom.errors import ConfigurationError
from mailroom.host import Mailroom
from mailroom.messaging.transports.base import Broker
from mailroom.settings import Settings

BROKER_SECONDS = 30.0
"""One that is frozen answers nothing, and says nothing either."""
EXIT_CODES = {Status.OK: 0, Status.TO_DO: 1, Status.WRONG: 2}


def show(name: str, settings: Callable[[], Settings], mailroom: Callable[[], Mailroom], *, json: bool) -> None:
    """Prints every check. Exits with 0 if all is well, 1 if there is something to do, 2 if nothing can start."""
    checks = asyncio.run(_examine(name, settings))
    checks += _composition(name, mailroom, checks)
    code = max(EXIT_CODES[check.status] for check in checks)
    if json:
        as_json({"healthy": code == 0, "checks": [asdict(check) for check in checks]})
    else:
        table(
            ["check", "status", "found", "what to do"],
            [(check.name, check.status, check.found, check.remedy) for check in checks],
        )
        if code == 0:
            say("all is well")
    raise typer.Exit(code)


async def _examine(name: str, settings: Callable[[], Settings]) -> list[Check]:
    return [check async for check in doctor.examine(settings, command=name)]


def _composition(name: str, mailroom: Callable[[], Mailroom], checks: list[Check]) -> list[Check]:
    """What refuses to start only when handlers, events and transports come together. The posture was looked at."""
    if any(check.name in ("settings", "posture") and check.status is Status.WRONG for check in checks):
        return []
    try:
        service = mailroom()
    except ConfigurationError as error:
        return [Check(name="service", status=Status.WRONG, found=f"refuses to start: {error}")]
    fits = Check(name="service", status=Status.OK, found="handlers, events and transport fit together")
    return [fits, *asyncio.run(_broker(name, service))]


async def _broker(name: str, service: Mailroom) -> list[Check]:
    """What the transport knows about its broker, where it has one."""
    checks: list[Check] = []
    try:
        if isinstance(service.transport, Broker):
            async with asyncio.timeout(BROKER_SECONDS):
                async for check in service.transport.examine(name):
                    checks.append(check)
    except TimeoutError:
        found = f"did not answer everything within {BROKER_SECONDS:g} seconds"
        checks.append(Check(name="broker", status=Status.TO_DO, found=found, remedy="look at the broker's own log"))
    finally:
        await service.transport.stop()
        await service.close()
    return checks
