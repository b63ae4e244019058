"""Claims on PostgreSQL: `FOR UPDATE SKIP LOCKED` under `UPDATE … RETURNING`, advisory locks for ordering keys.

`statement_timestamp()` is the clock: real time even late in a long transaction, and stable within a statement, so that
an index can be searched by it.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Float, Interval, Select, bindparam, cast, func, literal, select, text, type_coerce
from sqlalchemy.sql.elements import ColumnElement

from mailroom.persistence.claims.base import Claims, slots
from mailroom.persistence.tables import UtcDateTime

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

    def free(self, rows: Select[Any], table: Any) -> Select[Any]:
        """As a CTE, which is evaluated once; a subquery could be asked more often, and lock more than its limit."""
        return select(rows.with_for_update(skip_locked=True, of=table).cte("free").c.id)

    def lock_keys(self, connection: Connection, keys: Sequence[str]) -> None:
        for slot in slots(keys):
            connection.execute(_LOCK, {"slot": slot})
