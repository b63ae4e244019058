"""Whether a host is live and ready, with the checks behind it (contract A2).

Live: what should run does run; what is not live is helped by a restart. Ready: it can do its work now, too; while it
is not, a restart would not help.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from mailroom.errors import DatabaseUnavailableError, MailroomError
from mailroom.lifecycle import Lifecycle, Phase
from mailroom.persistence import schema
from mailroom.persistence.database import Database
from mailroom.posture import named
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

    def __init__(self, lifecycle: Lifecycle, databases: Mapping[str, Database]) -> None:
        """`databases` are those without which nothing goes, by the name of their data source."""
        self._lifecycle = lifecycle
        self._probes = [_Probe(name, database) for name, database in databases.items()]

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
        asked = await asyncio.gather(*(probe.ask() for probe in self._probes))
        return (*live, host, *self._connections(), *chain.from_iterable(asked))

    async def close(self) -> None:
        """Gives up on databases that have not answered yet."""
        for probe in self._probes:
            await probe.close()

    def _connections(self) -> list[Check]:
        return [
            Check(name=f"connection of {service.name}", ok=problem is None, detail=problem or "is there")
            for service in self._lifecycle.running
            if isinstance(service, ReportsConnection)
            for problem in [service.disconnection()]
        ]


class _Probe:
    """Asks one database whether it is there, and migrated to what this code needs."""

    def __init__(self, source: str, database: Database) -> None:
        self._source = source
        self._database = database
        self._asking: asyncio.Task[tuple[Check, ...]] | None = None
        self._needed: schema.Needed | None = None

    async def ask(self) -> tuple[Check, ...]:
        """One question at a time, whoever asks: so one that hangs takes one connection, not one for each probe."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._look(), name="health database")
        asking = self._asking
        await asyncio.wait([asking], timeout=DATABASE_SECONDS)
        if asking.done() and not asking.cancelled():
            return asking.result()
        return (self._check("database", f"has not answered within {DATABASE_SECONDS:g} seconds"),)

    async def close(self) -> None:
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.wait([self._asking], timeout=DATABASE_SECONDS)

    async def _look(self) -> tuple[Check, ...]:
        try:
            self._needed = self._needed or schema.needed(source=self._source)
        except MailroomError as error:
            return (self._check("schema", str(error)),)
        try:
            lacking = await schema.lacking(self._database.engine, self._needed)
        except DatabaseUnavailableError as error:
            return (self._check("database", str(error)),)
        return (
            self._check("database", None, "answers"),
            self._check("schema", "; ".join(lacking), "has what this code needs"),
        )

    def _check(self, name: str, problem: str | None, fine: str = "") -> Check:
        return Check(name=named(name, self._source), ok=not problem, detail=problem or fine)
