"""Looking at the outbox by hand: in numbers, in pages, one row; it never writes and never waits (contract A1)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, case, func, select

from mailroom.outbox.selection import EVERYTHING, Selection, State, is_in, state_column
from mailroom.persistence.database import Database
from mailroom.persistence.tables import InboxMessage, OutboxMessage

IDS_AT_ONCE = 1_000
"""A statement has room for few parameters: SQL Server's limit is 2,100."""


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
class Backlog:
    """What waits longer than it should, and by which clock."""

    overdue: int
    """Due for longer than was asked for, and no relay has taken them."""
    stale: int
    """Held by a relay whose lease ran out: it stopped without finishing them."""
    now: datetime
    """The database's clock."""


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
class Details(Entry):
    """One row of the outbox with all it has; the payload only where it was asked for."""

    headers: str
    """JSON, as it is stored."""
    lock_token: UUID | None
    locked_until: datetime | None
    processed_on: datetime | None
    dead_lettered_on: datetime | None
    payload: str | None
    """JSON, as it is stored; None unless it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """How many of the selected rows have one event name and one state."""

    event_type: str
    state: State
    rows: int


class OutboxInspection:
    """What an operator can see of one data source. Payloads are shown on demand only: they may be private."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def stats(self) -> Stats:
        row = OutboxMessage
        pending = is_in(State.PENDING) | is_in(State.LEASED)
        counts = select(
            _count(pending),
            _count(is_in(State.LEASED)),
            _count(pending & (row.attempts > 0)),
            _count(is_in(State.PROCESSED)),
            _count(is_in(State.DEAD_LETTERED)),
            func.min(case((pending, row.occurred_on))),
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

    async def backlog(self, *, overdue_seconds: float) -> Backlog:
        row, claims = OutboxMessage, self._database.claims
        counts = select(
            _count(is_in(State.PENDING) & (row.available_on < claims.later(-overdue_seconds))),
            _count(is_in(State.LEASED) & (row.locked_until < claims.now())),
            claims.now(),
        ).select_from(row)
        async with self._database.reader() as session:
            overdue, stale, now = (await session.execute(counts)).one()
        return Backlog(overdue=overdue, stale=stale, now=now)

    async def entries(
        self, selection: Selection = EVERYTHING, *, limit: int = 50, before_id: int | None = None
    ) -> list[Entry]:
        """The newest rows first, `limit` at a time; go on with the last id that you got."""
        found: list[Entry] = []
        statement = select(*_columns(Entry)).order_by(OutboxMessage.id.desc()).limit(limit)
        if before_id is not None:
            statement = statement.where(OutboxMessage.id < before_id)
        async with self._database.reader() as session:
            for conditions in self.conditions(selection):
                found += [Entry(**_values(row)) for row in await session.execute(statement.where(*conditions))]
        return sorted(found, key=lambda entry: -entry.id)[:limit]

    async def entry(self, row_id: int, *, with_payload: bool = False) -> Details | None:
        """One row, or None if it is not there."""
        columns = [column for column in _columns(Details) if with_payload or column.key != "payload"]
        async with self._database.reader() as session:
            row = (await session.execute(select(*columns).where(OutboxMessage.id == row_id))).one_or_none()
        return None if row is None else Details(**{"payload": None, **_values(row)})

    async def groups(self, selection: Selection) -> list[Group]:
        """The selected rows in numbers, by event name and state: what a change of them would meet."""
        counted: dict[tuple[str, State], int] = {}
        async with self._database.reader() as session:
            for conditions in self.conditions(selection):
                rows_of = select(OutboxMessage.event_type, state_column().label("state")).where(*conditions).subquery()
                statement = select(rows_of.c.event_type, rows_of.c.state, func.count()).group_by(
                    rows_of.c.event_type, rows_of.c.state
                )
                for event_type, value, rows in await session.execute(statement):
                    group = (event_type, State(value))
                    counted[group] = counted.get(group, 0) + rows
        return [Group(event_type=name, state=state, rows=rows) for (name, state), rows in sorted(counted.items())]

    def conditions(self, selection: Selection) -> Iterator[list[ColumnElement[bool]]]:
        """What selects the rows: once, or once for each portion of the ids."""
        others = selection.conditions(self._database.claims)
        if selection.ids is None:
            yield others
            return
        for portion in portions(selection.ids):
            yield [OutboxMessage.id.in_(portion), *others]


def _count(condition: ColumnElement[bool]) -> ColumnElement[int]:
    return func.count(case((condition, 1)))


def portions(ids: Sequence[int]) -> Iterator[list[int]]:
    """Each id once, in order, a statement's fill at a time."""
    distinct = sorted(set(ids))
    for start in range(0, len(distinct), IDS_AT_ONCE):
        yield distinct[start : start + IDS_AT_ONCE]


def _columns(shown: type[Entry]) -> list[Any]:
    names = [field.name for field in fields(shown)]
    return [state_column().label("state") if name == "state" else getattr(OutboxMessage, name) for name in names]


def _values(row: Any) -> dict[str, Any]:
    return {**row._mapping, "state": State(row.state)}
