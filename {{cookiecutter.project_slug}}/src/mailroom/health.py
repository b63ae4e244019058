"""Whether a host is live and ready, with the checks behind it (contract A2).

Live: what should run does run; what is not live is helped by a restart. Ready: it can do its work now, too; while it
is not, a restart would not help.
"""

import asyncio
from dataclasses import dataclass

from mailroom.errors import DatabaseUnavailableError, MailroomError
from mailroom.lifecycle import Lifecycle, Phase
from mailroom.persistence import schema
from mailroom.persistence.database import Database
from mailroom.service import ReportsConnection, ReportsFailure

DATABASE_SECONDS = 2.0
"""How long the database may take to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at. `detail` says what was found, without secrets."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """What `Mailroom.health()` found. A host that is ready is live, too."""

    live: bool
    ready: bool
    checks: tuple[Check, ...]


class Examination:
    """Looks at one host, from within its event loop. Any number of callers may ask at once."""

    def __init__(self, lifecycle: Lifecycle, database: Database) -> None:
        self._lifecycle = lifecycle
        self._database = database
        self._asking: asyncio.Task[tuple[Check, ...]] | None = None
        self._needed: schema.Needed | None = None

    async def health(self) -> Health:
        """Both answers, within a few seconds."""
        live, ready = await self.live(), await self.ready()
        return Health(live=all(check.ok for check in live), ready=all(check.ok for check in ready), checks=ready)

    async def live(self) -> tuple[Check, ...]:
        """The checks of which one that is not fine means: not live. Asks nobody, so it answers at once."""
        return tuple(
            Check(name=service.name, ok=failure is None, detail=failure or "runs")
            for service in self._lifecycle.running
            if isinstance(service, ReportsFailure)
            for failure in [service.failure()]
        )

    async def ready(self) -> tuple[Check, ...]:
        """Those, and the checks of which one that is not fine means: not ready."""
        live = await self.live()
        phase = self._lifecycle.phase
        host = Check(name="host", ok=phase is Phase.RUNNING, detail=phase.value)
        if phase in (Phase.STOPPING, Phase.STOPPED):
            return (*live, host)  # its connections are being given back, and none is taken any more
        return (*live, host, *self._connections(), *await self._ask_database())

    async def close(self) -> None:
        """Gives up on a database that has not answered yet."""
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.wait([self._asking], timeout=DATABASE_SECONDS)

    def _connections(self) -> list[Check]:
        return [
            Check(name=f"connection of {service.name}", ok=problem is None, detail=problem or "is there")
            for service in self._lifecycle.running
            if isinstance(service, ReportsConnection)
            for problem in [service.disconnection()]
        ]

    async def _ask_database(self) -> tuple[Check, ...]:
        """One question at a time, whoever asks: so one that hangs takes one connection, not one for each probe."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._look_at_database(), name="health database")
        asking = self._asking
        await asyncio.wait([asking], timeout=DATABASE_SECONDS)
        if asking.done() and not asking.cancelled():
            return asking.result()
        return (Check(name="database", ok=False, detail=f"has not answered within {DATABASE_SECONDS:g} seconds"),)

    async def _look_at_database(self) -> tuple[Check, ...]:
        try:
            self._needed = self._needed or schema.needed()
        except MailroomError as error:
            return (Check(name="schema", ok=False, detail=str(error)),)
        try:
            lacking = await schema.lacking(self._database.engine, self._needed)
        except DatabaseUnavailableError as error:
            return (Check(name="database", ok=False, detail=str(error)),)
        return (
            Check(name="database", ok=True, detail="answers"),
            Check(name="schema", ok=not lacking, detail="; ".join(lacking) or "has what this code needs"),
        )
