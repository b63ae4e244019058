"""Deletes what has been kept long enough, in small batches, on an interval (contract R8)."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, exists, select
from sqlalchemy.orm import InstrumentedAttribute

from mailroom.log import get_logger
from mailroom.persistence.database import Database
from mailroom.persistence.tables import InboxMessage, OutboxMessage
from mailroom.service import UNDOING_SECONDS, end, ended
from mailroom.settings import OutboxSettings

logger = get_logger(__name__)

BATCH_SIZE = 1_000
SECONDS_PER_DAY = 86_400
SECONDS_PER_HOUR = 3_600

_IS_PENDING = exists().where(
    OutboxMessage.message_id == InboxMessage.message_id,
    OutboxMessage.processed_on.is_(None),
    OutboxMessage.dead_lettered_on.is_(None),
)
"""A message that a relay here may still hand out, after however long a standstill, must stay recognisable (I9).

What is pending in another data source cannot be asked for in this statement, and that database may be away.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """How many rows one run deleted."""

    processed: int = 0
    dead_lettered: int = 0
    inbox: int = 0


class OutboxCleanup:
    """Purges processed and inbox rows after `outbox.retention_days`; 0 keeps them for ever.

    Dead letters are purged only if `outbox.dead_letter_retention_days` is set.
    """

    def __init__(self, database: Database, settings: OutboxSettings, *, name: str = "OutboxCleanup") -> None:
        self.name = name
        self._database = database
        self._settings = settings
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="outbox cleanup")

    async def stop(self) -> None:
        if self._task is not None:
            await end([self._task], again_seconds=UNDOING_SECONDS)
            self._task = None

    def failure(self) -> str | None:
        """Whether its task ended although nobody stopped it (contract A2)."""
        return ended([self._task])

    async def run_once(self) -> Purged:
        """Deletes everything that is due now. Safe beside relays, producers and other cleanups."""
        purged = Purged()
        if self._settings.retention_days:
            before = self._days_ago(self._settings.retention_days)
            purged = Purged(
                processed=await self._delete(OutboxMessage, OutboxMessage.processed_on, before),
                inbox=await self._delete(InboxMessage, InboxMessage.processed_on, before, ~_IS_PENDING),
            )
        if self._settings.dead_letter_retention_days is not None:
            before = self._days_ago(self._settings.dead_letter_retention_days)
            dead_lettered = await self._delete(OutboxMessage, OutboxMessage.dead_lettered_on, before)
            purged = Purged(processed=purged.processed, inbox=purged.inbox, dead_lettered=dead_lettered)
        return purged

    async def _run(self) -> None:
        while True:
            try:
                purged = await self.run_once()
                if purged != Purged():
                    logger.info(
                        "purged",
                        processed=purged.processed,
                        dead_lettered=purged.dead_lettered,
                        inbox=purged.inbox,
                    )
            except Exception:
                logger.warning("cleanup failed, trying again at the next interval", exc_info=True)
            await asyncio.sleep(self._settings.cleanup_interval_hours * SECONDS_PER_HOUR)

    async def _delete(
        self,
        table: type[OutboxMessage] | type[InboxMessage],
        finished_on: InstrumentedAttribute[Any],
        before: ColumnElement[datetime],
        *more: ColumnElement[bool],
    ) -> int:
        """Deletes batch after batch until one comes back short. In the order of an index, the oldest first: what an
        earlier batch has deleted is not read again.

        Between two batches it pauses for as long as the last one took: on SQLite, whoever wants to write waits for a
        batch, and asks again only now and then.
        """
        clock = asyncio.get_running_loop().time
        expired = select(table.id).where(finished_on < before, *more).order_by(finished_on).limit(BATCH_SIZE)
        statement = delete(table).where(table.id.in_(self._database.claims.free(expired, table)))
        deleted = 0
        while True:
            began = clock()
            async with self._database.connection() as connection:
                count: int = (await connection.execute(statement)).rowcount
            deleted += count
            if count < BATCH_SIZE:
                return deleted
            await asyncio.sleep(clock() - began)

    def _days_ago(self, days: float) -> ColumnElement[datetime]:
        return self._database.claims.later(-days * SECONDS_PER_DAY)
