"""Claims on PostgreSQL: `FOR UPDATE SKIP LOCKED` under `UPDATE … RETURNING`, advisory locks for ordering keys.

`statement_timestamp()` is the clock: real time even late in a long transaction, and stable within a statement, so that
an index can be searched by it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ARRAY,
    Column,
    Connection,
    Float,
    Insert,
    Interval,
    Select,
    Table,
    any_,
    bindparam,
    cast,
    func,
    literal,
    or_,
    select,
    text,
    true,
    type_coerce,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased
from sqlalchemy.sql.elements import ColumnElement

from mailroom.persistence.claims.base import Claims, pending, slots
from mailroom.persistence.tables import OutboxMessage, UtcDateTime

_KEY_LOCKS = 0x6D61696C
"""The first half of each advisory lock: it tells mailroom's locks from those of others ("mail")."""
_LOCK = text("SELECT pg_advisory_xact_lock(:mailroom, :slot)").bindparams(mailroom=_KEY_LOCKS)


class PostgresClaims(Claims):
    waits_on_unique_insert = True

    def now(self) -> ColumnElement[datetime]:
        if self._clock is None:
            return func.statement_timestamp(type_=UtcDateTime)
        return bindparam(None, callable_=self._clock, type_=UtcDateTime)

    def later(self, seconds: float | ColumnElement[Any]) -> ColumnElement[datetime]:
        moved = self.now() + cast(seconds, Float) * literal(timedelta(seconds=1), Interval)
        return type_coerce(moved, UtcDateTime)

    def heads(self, rows: Select[Any], row: Any) -> Select[Any]:
        """The oldest of a key is looked up once per key: a lateral join remembers what it found, EXISTS does not.

        So many rows of one key cost little. The key is a range in the order of the index: if it were equal to
        something, id alone would be the order, and a planner might search the primary key from its beginning.

        No id is lower than the head's. The planner takes an equality for one row of all, and reads and sorts every
        pending row to find it; a comparison lets it stop at the limit.
        """
        oldest = aliased(OutboxMessage)
        head = (
            select(oldest.id)
            .where(*pending(oldest, row.kind), oldest.ordering_key.between(row.ordering_key, row.ordering_key))
            .order_by(oldest.kind, oldest.ordering_key, oldest.id)
            .limit(1)
            .lateral("head")
        )
        return rows.outerjoin(head, true()).where(or_(row.ordering_key.is_(None), row.id <= head.c.id))

    def among(self, column: Any, name: str) -> ColumnElement[bool]:
        """As one array: a list of parameters would be another statement for each length, to be prepared anew."""
        return column == any_(bindparam(name, type_=ARRAY(column.type)))  # type: ignore[no-any-return]

    def insert_unless_there(self, table: Table, unique: Column[Any]) -> Insert:
        return insert(table).on_conflict_do_nothing(index_elements=[unique])

    def free(self, rows: Select[Any], table: Any) -> Select[Any]:
        """As a CTE, which is evaluated once; a subquery could be asked more often, and lock more than its limit."""
        return select(rows.with_for_update(skip_locked=True, of=table).cte("free").c.id)

    def lock_keys(self, connection: Connection, keys: Sequence[str]) -> None:
        for slot in slots(keys):
            connection.execute(_LOCK, {"slot": slot})
