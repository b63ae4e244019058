"""The seam `Claims`: what a database must offer so that any number of relays share one outbox (contract R1, R3).

The predicates are the same everywhere and stand here; how rows are locked, skipped and timed is each database's own.

Served by `ix_outbox_messages_pending (kind, locked_until, available_on, id)`: rows that nobody holds are the entries
with `locked_until IS NULL`, in the order in which they are claimed; leases, and those that expired, are ranges of the
same index. The head of an ordering key is the first entry of its key in `ix_outbox_messages_ordering_key`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID
from zlib import crc32

from sqlalchemy import (
    Column,
    Connection,
    Executable,
    Insert,
    Select,
    Table,
    Update,
    and_,
    bindparam,
    case,
    exists,
    or_,
    select,
    update,
)
from sqlalchemy.orm import aliased
from sqlalchemy.sql.elements import ColumnElement

from mailroom.events import Kind
from mailroom.persistence.tables import OutboxMessage

KEY_SLOTS = 1024
"""Ordering keys share so many locks; two keys in one slot wait for each other's commits, which is safe."""


class Claims(ABC):
    """The statements that differ between databases. Times are always the database's own (contract R1)."""

    waits_on_unique_insert: ClassVar[bool]
    """Whether a second insert of one unique value waits for the first transaction, without blocking others (I2)."""

    def __init__(self, clock: Callable[[], datetime] | None = None) -> None:
        """`clock` replaces the database's, for tests that move it."""
        self._clock = clock

    @abstractmethod
    def now(self) -> ColumnElement[datetime]:
        """The database's clock, UTC, the same in the whole statement."""

    @abstractmethod
    def later(self, seconds: float | ColumnElement[Any]) -> ColumnElement[datetime]:
        """The database's clock moved by so many seconds, which may be negative."""

    def among(self, column: Any, name: str) -> ColumnElement[bool]:
        """Whether the column's value is in the list that the statement is given under this name."""
        return column.in_(bindparam(name, expanding=True))  # type: ignore[no-any-return]

    @abstractmethod
    def free(self, rows: Select[Any], table: Any) -> Select[Any]:
        """The same rows of `table`, locked for this transaction, without those that others have locked."""

    def heads(self, rows: Select[Any], row: Any) -> Select[Any]:
        """The same rows without those that wait for an older one of their ordering key (contract R3)."""
        earlier = aliased(OutboxMessage)
        is_of_its_key = earlier.ordering_key == row.ordering_key
        waits = exists().where(*pending(earlier, row.kind), is_of_its_key, earlier.id < row.id)
        return rows.where(or_(row.ordering_key.is_(None), ~waits))

    def insert_unless_there(self, table: Table, unique: Column[Any]) -> Insert | None:
        """Adds a row unless its value is there, once whoever is adding the same value has committed or given up (I2).

        None if that takes a question before, and an error for the second of two.
        """
        return None

    @abstractmethod
    def lock_keys(self, connection: Connection, keys: Sequence[str]) -> None:
        """Makes ids of one ordering key follow commit order, until the transaction ends (contract R3)."""

    def claim(self, kind: Kind, *, token: UUID | ColumnElement[UUID], lease_seconds: float, limit: int) -> Executable:
        """Leases up to `limit` due rows of one kind that nobody holds, and returns them.

        A row with an ordering key is claimable only as the oldest unprocessed row of its key, leased or not,
        so no two relays ever hold one key (contract R3). The predicate stands again where the row is written.
        """
        row = aliased(OutboxMessage)
        fresh = select(row.id).where(*self._fresh(row, kind)).order_by(*_in_turn(row)).limit(limit)
        chosen = self.free(self.heads(fresh, row), row)
        lease = self._lease(chosen, self._fresh(OutboxMessage, kind), token, lease_seconds)
        return lease.returning(OutboxMessage)

    def take_over(self, kind: Kind, *, token: UUID, lease_seconds: float) -> Executable:
        """Leases the one row whose lease ran out longest ago, charges it one attempt, and returns it (R6)."""
        row = aliased(OutboxMessage)
        chosen = select(row.id).where(*self._expired(row, kind)).order_by(*_in_turn(row)).limit(1)
        lease = self._lease(self.free(chosen, row), self._expired(OutboxMessage, kind), token, lease_seconds)
        return lease.values(attempts=OutboxMessage.attempts + 1).returning(OutboxMessage)

    def renew(self, tokens: Iterable[UUID], *, lease_seconds: float) -> Executable:
        """Keeps the leases under these tokens for another full period."""
        row, held = aliased(OutboxMessage), list(tokens)
        chosen = select(row.id).where(*_held(row, held))
        return (
            update(OutboxMessage)
            .where(OutboxMessage.id.in_(self.free(chosen, row)), _still(_held(OutboxMessage, held)))
            .values(locked_until=self.later(lease_seconds))
            .execution_options(synchronize_session=False)
        )

    def due(self) -> Executable:
        """One row that says what there is to do: `<kind>_fresh` and `<kind>_expired`, 1 or 0 (contract R7).

        It asks for the first row in the order of the index: EXISTS would let a planner that expects many such rows
        read the table from its beginning, which is where the processed ones are.
        """
        columns = []
        for kind in Kind:
            for name, condition in (("fresh", self._fresh), ("expired", self._expired)):
                row = aliased(OutboxMessage)
                first = select(row.id).where(*condition(row, kind)).order_by(*_in_turn(row)).limit(1).scalar_subquery()
                columns.append(case((first.is_not(None), 1), else_=0).label(f"{kind.value}_{name}"))
        return select(*columns)

    def _lease(self, chosen: Select[Any], still: Sequence[ColumnElement[bool]], token: Any, seconds: float) -> Update:
        return (
            update(OutboxMessage)
            .where(OutboxMessage.id.in_(chosen), _still(still))
            .values(lock_token=token, locked_until=self.later(seconds))
            .execution_options(synchronize_session=False)
        )

    def _fresh(self, row: Any, kind: Kind) -> list[ColumnElement[bool]]:
        return [*pending(row, kind.value), row.locked_until.is_(None), row.available_on <= self.now()]

    def _expired(self, row: Any, kind: Kind) -> list[ColumnElement[bool]]:
        return [*pending(row, kind.value), row.locked_until < self.now()]


def slots(keys: Sequence[str]) -> list[int]:
    """Which of the shared locks stand for these keys, in the order in which everybody takes them."""
    return sorted({crc32(key.encode()) % KEY_SLOTS for key in keys})


def pending(row: Any, kind: str | ColumnElement[str]) -> list[ColumnElement[bool]]:
    """What a relay may still have to do."""
    return [row.kind == kind, *_unfinished(row)]


def _held(row: Any, tokens: Sequence[UUID]) -> list[ColumnElement[bool]]:
    """No index has tokens, so it names what is leased, which is a range of the index."""
    kinds = row.kind.in_([kind.value for kind in Kind])
    return [kinds, *_unfinished(row), row.locked_until.is_not(None), row.lock_token.in_(tokens)]


def _still(conditions: Sequence[ColumnElement[bool]]) -> ColumnElement[bool]:
    """What must be true where rows are written, as one expression that no index serves.

    So rows are found by their ids alone. Else a planner might read every pending row to find these few.
    """
    return case((and_(*conditions), 1), else_=0) == 1


def _unfinished(row: Any) -> list[ColumnElement[bool]]:
    return [row.processed_on.is_(None), row.dead_lettered_on.is_(None)]


def _in_turn(row: Any) -> tuple[Any, ...]:
    """The order of `ix_outbox_messages_pending`."""
    return row.locked_until, row.available_on, row.id
