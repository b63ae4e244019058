"""Looking at the outbox and repairing it by hand; a row that a relay holds is never touched (contract A1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, select, update

from mailroom.persistence.database import Database
from mailroom.persistence.tables import InboxMessage, OutboxMessage


class State(StrEnum):
    """Where a row of the outbox stands."""

    PENDING = "pending"
    LEASED = "leased"
    PROCESSED = "processed"
    DEAD_LETTERED = "dead-lettered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Both tables in numbers."""

    pending: int
    """To be sent, those held by a relay included."""
    leased: int
    """Held by a relay now, or by one that stopped without finishing."""
    retrying: int
    """Pending, and failed at least once."""
    processed: int
    dead_lettered: int
    oldest_pending_seconds: float | None
    """How long ago the oldest pending event occurred."""
    inbox: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of the outbox without its payload."""

    id: int
    message_id: UUID
    kind: str
    event_type: str
    event_version: int
    state: State
    ordering_key: str | None
    occurred_on: datetime
    available_on: datetime
    attempts: int
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of a replay."""

    replayed: Sequence[int]
    leased: Sequence[int]
    """Held by a relay, and left alone."""
    missing: Sequence[int]


class OutboxAdministration:
    """The handles of an operator on one data source."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def stats(self) -> Stats:
        row = OutboxMessage
        pending = _is(State.PENDING) | _is(State.LEASED)
        counts = select(
            func.count().filter(pending),
            func.count().filter(_is(State.LEASED)),
            func.count().filter(pending, row.attempts > 0),
            func.count().filter(_is(State.PROCESSED)),
            func.count().filter(_is(State.DEAD_LETTERED)),
            func.min(row.occurred_on).filter(pending),
            self._database.claims.now(),
            select(func.count()).select_from(InboxMessage).scalar_subquery(),
        ).select_from(row)
        async with self._database.reader() as session:
            result = (await session.execute(counts)).one()
        (waiting, leased, retrying, processed, dead_lettered, oldest, now, inbox) = result
        return Stats(
            pending=waiting,
            leased=leased,
            retrying=retrying,
            processed=processed,
            dead_lettered=dead_lettered,
            oldest_pending_seconds=(now - oldest).total_seconds() if oldest is not None else None,
            inbox=inbox,
        )

    async def entries(
        self, *, state: State | None = None, limit: int = 50, before_id: int | None = None
    ) -> list[Entry]:
        """The newest rows first, `limit` at a time; go on with the last id that you got."""
        statement = select(OutboxMessage).order_by(OutboxMessage.id.desc()).limit(limit)
        if state is not None:
            statement = statement.where(_is(state))
        if before_id is not None:
            statement = statement.where(OutboxMessage.id < before_id)
        async with self._database.reader() as session:
            return [_entry(row) for row in (await session.scalars(statement)).all()]

    async def dead_letter_ids(self) -> list[int]:
        """All that a replay of dead letters would send again, the oldest first."""
        statement = select(OutboxMessage.id).where(_is(State.DEAD_LETTERED)).order_by(OutboxMessage.id)
        async with self._database.reader() as session:
            return list((await session.scalars(statement)).all())

    async def replay(self, ids: Sequence[int]) -> Replayed:
        """Makes rows due now, with all their attempts before them. Rows that a relay holds are left alone (F17).

        The message id stays, so where the inbox already knows it, its handlers do not run again.
        """
        again = (
            update(OutboxMessage)
            .where(OutboxMessage.id.in_(ids), OutboxMessage.lock_token.is_(None))
            .values(available_on=self._database.claims.now(), attempts=0, processed_on=None, dead_lettered_on=None)
            .returning(OutboxMessage.id)
        )
        async with self._database.connection() as connection:
            replayed = set((await connection.execute(again)).scalars().all())
            left = select(OutboxMessage.id).where(OutboxMessage.id.in_(ids))
            existing = set((await connection.execute(left)).scalars().all())
        return Replayed(
            replayed=sorted(replayed),
            leased=sorted(existing - replayed),
            missing=sorted(set(ids) - existing),
        )


def _is(state: State) -> ColumnElement[bool]:
    row = OutboxMessage
    unfinished = and_(row.processed_on.is_(None), row.dead_lettered_on.is_(None))
    return {
        State.PENDING: and_(unfinished, row.lock_token.is_(None)),
        State.LEASED: and_(unfinished, row.lock_token.is_not(None)),
        State.PROCESSED: and_(row.processed_on.is_not(None), row.dead_lettered_on.is_(None)),
        State.DEAD_LETTERED: row.dead_lettered_on.is_not(None),
    }[state]


def _entry(row: OutboxMessage) -> Entry:
    if row.dead_lettered_on is not None:
        state = State.DEAD_LETTERED
    elif row.processed_on is not None:
        state = State.PROCESSED
    else:
        state = State.PENDING if row.lock_token is None else State.LEASED
    return Entry(
        id=row.id,
        message_id=row.message_id,
        kind=row.kind,
        event_type=row.event_type,
        event_version=row.event_version,
        state=state,
        ordering_key=row.ordering_key,
        occurred_on=row.occurred_on,
        available_on=row.available_on,
        attempts=row.attempts,
        last_error=row.last_error,
    )
