"""One data source and all that belongs to it: its sessions, its outbox, its relay and its cleanup (contract T5).

Sources know nothing of each other, so one that fails stops no other.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession

from mailroom.events import Kind
from mailroom.messaging.bus import DirectDispatcher
from mailroom.outbox.administration import OutboxAdministration
from mailroom.outbox.cleanup import OutboxCleanup
from mailroom.outbox.gate import Gate
from mailroom.outbox.leases import Leases
from mailroom.outbox.processor import OutboxProcessor, Route
from mailroom.outbox.wake_up import WakeUp
from mailroom.outbox.writer import OutboxWriter
from mailroom.persistence.capture import Observer
from mailroom.persistence.database import Database
from mailroom.posture import named
from mailroom.settings import DatabaseSettings, Settings


class DataSource:
    """What `Mailroom` composes for each data source."""

    def __init__(
        self,
        name: str,
        database: DatabaseSettings,
        settings: Settings,
        *,
        direct: DirectDispatcher | None,
        observers: Sequence[Observer],
    ) -> None:
        """`direct` is where events go while the outbox is off; None: into the outbox."""
        self.name = name
        self.database = Database(database)
        self.outbox = OutboxAdministration(self.database)
        self.sessions = self.database.sessions(direct or OutboxWriter(self.database, self._wake), observers)
        self.cleanup = OutboxCleanup(self.database, settings.outbox, name=named("OutboxCleanup", name))
        self._settings = settings
        self._wake_up = WakeUp(self.database, lambda kinds: self.processor.wake(kinds))
        self.processor: OutboxProcessor

    def relay_by(self, routes: Mapping[Kind, Route], gate: Gate) -> None:
        """Where its relay sends events; decided once the consumer exists, which is built on a data source itself."""
        self.processor = OutboxProcessor(
            Leases(self.database, lease_seconds=self._settings.outbox.lease_seconds),
            routes,
            self._settings,
            self.outbox,
            self._wake_up,
            gate,
            name=named("OutboxProcessor", self.name),
        )

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        async with self.sessions() as session, session.begin():
            yield session

    async def close(self) -> None:
        await self._wake_up.close()
        await self.database.dispose()

    def _wake(self, kinds: Iterable[Kind]) -> None:
        """Events of these kinds were committed here. If no relay runs here, those that run elsewhere are told (R7)."""
        self.processor.wake(kinds)
        if not self.processor.is_running:
            self._wake_up.tell(kinds)
