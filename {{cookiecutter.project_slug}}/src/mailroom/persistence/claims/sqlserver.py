"""Claims on SQL Server: lock hints under `UPDATE … OUTPUT`, application locks for ordering keys.

`READPAST` skips what others have locked, `UPDLOCK` keeps two relays from choosing one row, `ROWLOCK` keeps neighbours
free, and `READCOMMITTEDLOCK` makes the hints hold under read-committed snapshots as well. `SYSUTCDATETIME()` is the
clock.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Float, Integer, Select, bindparam, cast, func, literal_column, text
from sqlalchemy.sql.elements import ColumnElement

from mailroom.persistence.claims.base import Claims, slots
from mailroom.persistence.tables import UtcDateTime

HINTS = "WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK)"
MICROSECONDS = 1_000_000
SECONDS_PER_DAY = 86_400

_LOCK = text(
    "DECLARE @result int; "
    "EXEC @result = sp_getapplock @Resource = :resource, @LockMode = 'Exclusive', @LockOwner = 'Transaction', "
    "@LockTimeout = -1; "
    "IF @result < 0 THROW 51205, 'the lock of an ordering key could not be taken', 1;"
)


class SqlServerClaims(Claims):
    waits_on_unique_insert = True

    def now(self) -> ColumnElement[datetime]:
        if self._clock is None:
            return func.todatetimeoffset(func.sysutcdatetime(), "+00:00", type_=UtcDateTime)
        return bindparam(None, callable_=self._clock, type_=UtcDateTime)

    def later(self, seconds: float | ColumnElement[Any]) -> ColumnElement[datetime]:
        """In three steps: DATEADD takes an int, which holds 68 years of seconds and 35 minutes of microseconds."""
        days, rest, fraction = _known(seconds) if isinstance(seconds, int | float) else _asked(cast(seconds, Float))
        moment = self.now()
        for part, number in (("day", days), ("second", rest), ("microsecond", fraction)):
            moment = func.dateadd(literal_column(part), cast(number, Integer), moment, type_=UtcDateTime)
        return moment

    def free(self, rows: Select[Any], table: Any) -> Select[Any]:
        return rows.with_hint(table, HINTS, "mssql")

    def lock_keys(self, connection: Connection, keys: Sequence[str]) -> None:
        for slot in slots(keys):
            connection.execute(_LOCK, {"resource": f"mailroom/{slot}"})


def _known(seconds: float) -> tuple[int, int, int]:
    """Whole days, whole seconds and microseconds."""
    moved = timedelta(seconds=seconds)
    return moved.days, moved.seconds, moved.microseconds


def _asked(seconds: ColumnElement[Any]) -> tuple[ColumnElement[Any], ColumnElement[Any], ColumnElement[Any]]:
    """The same, by the database."""
    days = func.floor(seconds / SECONDS_PER_DAY)
    rest = seconds - days * SECONDS_PER_DAY
    return days, func.floor(rest), (rest - func.floor(rest)) * MICROSECONDS
