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
from mailroom.settings import Settings

EXIT_CODES = {Status.OK: 0, Status.TO_DO: 1, Status.WRONG: 2}


def show(name: str, settings: Callable[[], Settings], mailroom: Callable[[], Mailroom], *, json: bool) -> None:
    """Prints every check. Exits with 0 if all is well, 1 if there is something to do, 2 if nothing can start."""
    checks = asyncio.run(_examine(name, settings))
    checks += _composition(mailroom, checks)
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


def _composition(mailroom: Callable[[], Mailroom], checks: list[Check]) -> list[Check]:
    """What refuses to start only when handlers, events and transports come together. The posture was looked at."""
    if any(check.name in ("settings", "posture") and check.status is Status.WRONG for check in checks):
        return []
    try:
        mailroom()
    except ConfigurationError as error:
        return [Check(name="service", status=Status.WRONG, found=f"refuses to start: {error}")]
    return [Check(name="service", status=Status.OK, found="handlers, events and transport fit together")]
