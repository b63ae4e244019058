"""The inbox: each message id is handled once, since its row commits with the work of its handlers (ADR-021).

try_begin ─► handlers ─► complete        the row, every handler's changes and every event: one transaction
                │
                └─► abandon              nothing of it stays, and the message may come again
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, cast
from uuid import UUID

from sqlalchemy import CursorResult, Insert, Table, event, inspect, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from mailroom.persistence.aggregates import MailroomSession
from mailroom.persistence.claims import Claims
from mailroom.persistence.database import Database
from mailroom.persistence.tables import InboxMessage

_STAGED = "mailroom.inbox"


class InboxStore(Protocol):
    """Remembers which messages were handled (contract I1).

    A hand-written store subclasses this and needs only the first two; it marks after the commit then, so that a
    crash in between hands the message out once more.
    """

    async def already_processed(self, message_id: UUID) -> bool:
        """Whether a committed transaction recorded this message. Looks in a transaction of its own."""
        ...

    async def mark_processed(self, message_id: UUID, event_type: str) -> None:
        """Records the message, in a transaction of its own."""
        ...

    async def try_begin(self, session: AsyncSession, message_id: UUID, event_type: str) -> bool:
        """Returns False for a duplicate; else prepares the record in the session that the handlers will use."""
        return not await self.already_processed(message_id)

    async def complete(self, session: AsyncSession, message_id: UUID, event_type: str) -> None:
        """Commits the session, and with it the record. Records also what did not go through `try_begin`."""
        await session.commit()
        await self.mark_processed(message_id, event_type)

    async def abandon(self, session: AsyncSession, message_id: UUID) -> bool:
        """Rolls the session back. Returns False if this attempt had already committed the record (I3)."""
        await session.rollback()
        return True


class NoOpInboxStore(InboxStore):
    """Remembers nothing: the inbox is off (contract P3)."""

    async def already_processed(self, message_id: UUID) -> bool:
        return False

    async def mark_processed(self, message_id: UUID, event_type: str) -> None:
        return None


class SqlInboxStore(InboxStore):
    """Stages the record in the handlers' own session, in the table with the unique index on the message id (I2)."""

    def __init__(self, database: Database, sessions: async_sessionmaker[AsyncSession]) -> None:
        self._database = database
        self._sessions = sessions

    async def already_processed(self, message_id: UUID) -> bool:
        statement = select(InboxMessage.id).where(InboxMessage.message_id == message_id)
        async with self._database.reader() as session:
            return (await session.scalars(statement)).first() is not None

    async def mark_processed(self, message_id: UUID, event_type: str) -> None:
        async with self._sessions() as session:
            session.add(self._row(message_id, event_type))
            await session.commit()

    async def try_begin(self, session: AsyncSession, message_id: UUID, event_type: str) -> bool:
        """Checks, then stages the row.

        Where a second insert of the id would wait for the first one, the row is inserted at once: the loser then
        waits before its handlers run. SQLite would lock out every other writer for as long as the handlers take;
        there the row goes in with their first statement.
        """
        claims = self._database.claims
        statement = _insert_unless_there(claims)
        if statement is not None:
            result = await session.execute(statement, {"message_id": message_id, "event_type": event_type})
            is_new = cast(CursorResult[Any], result).rowcount == 1
            if is_new:
                session.info[_STAGED] = _Staged()
            return is_new
        if await self.already_processed(message_id):
            return False
        self._stage(session, message_id, event_type)
        if claims.waits_on_unique_insert:
            await session.flush()
        return True

    async def complete(self, session: AsyncSession, message_id: UUID, event_type: str) -> None:
        staged: _Staged | None = session.info.get(_STAGED)
        if staged is None or staged.is_dropped:
            self._stage(session, message_id, event_type)
        await session.commit()

    async def abandon(self, session: AsyncSession, message_id: UUID) -> bool:
        await session.rollback()
        staged: _Staged | None = session.info.get(_STAGED)
        return staged is None or not staged.is_committed

    def _stage(self, session: AsyncSession, message_id: UUID, event_type: str) -> None:
        row = self._row(message_id, event_type)
        session.add(row)
        session.info[_STAGED] = _Staged(row)

    def _row(self, message_id: UUID, event_type: str) -> InboxMessage:
        return InboxMessage(message_id=message_id, event_type=event_type, processed_on=self._database.claims.now())


@dataclass(slots=True)
class _Staged:
    """Whether the transaction that holds the staged row was committed, by whoever."""

    row: InboxMessage | None = None
    """None once it is in the database."""
    is_committed: bool = False

    @property
    def is_dropped(self) -> bool:
        """A handler emptied the session, with `expunge_all`, before the row was flushed."""
        return self.row is not None and bool(inspect(self.row).transient)


@event.listens_for(MailroomSession, "after_commit")
def _note_the_commit(session: Session) -> None:
    staged: _Staged | None = session.info.get(_STAGED)
    if staged is not None and session.get_nested_transaction() is None:
        staged.is_committed = not staged.is_dropped


@lru_cache
def _insert_unless_there(claims: Claims) -> Insert | None:
    """Built once; it takes the id and the event's type."""
    table = cast(Table, InboxMessage.__table__)
    statement = claims.insert_unless_there(table, table.c.message_id)
    return None if statement is None else statement.values(processed_on=claims.now())
