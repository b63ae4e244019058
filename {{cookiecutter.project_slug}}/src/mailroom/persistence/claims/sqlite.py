"""Claims on SQLite. `BEGIN IMMEDIATE` makes every claim the only writer, so nothing has to be locked or skipped."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Select, String, bindparam, cast, func
from sqlalchemy.sql.elements import ColumnElement

from mailroom.persistence.claims.base import Claims
from mailroom.persistence.tables import UtcDateTime

_TIME_FORMAT = "%Y-%m-%d %H:%M:%f000"
"""Six digits of a second, as SQLAlchemy writes them, so that times compare as text."""


class SqliteClaims(Claims):
    waits_on_unique_insert = False

    def now(self) -> ColumnElement[datetime]:
        return func.strftime(_TIME_FORMAT, self._moment(), type_=UtcDateTime)

    def later(self, seconds: float | ColumnElement[Any]) -> ColumnElement[datetime]:
        is_known = isinstance(seconds, int | float)
        modifier = f"{seconds:.6f} seconds" if is_known else cast(seconds, String).concat(" seconds")
        return func.strftime(_TIME_FORMAT, self._moment(), modifier, type_=UtcDateTime)

    def free(self, rows: Select[Any], table: Any) -> Select[Any]:
        return rows

    def lock_keys(self, connection: Connection, keys: Sequence[str]) -> None:
        """Nothing to do: the writer's place is taken before the first id is given."""

    def _moment(self) -> str | ColumnElement[str]:
        clock = self._clock
        if clock is None:
            return "now"
        # Asked when the statement runs, so that a statement can be kept.
        return bindparam(None, callable_=lambda: clock().astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f"), type_=String)
