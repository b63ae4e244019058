"""Claims on SQLite. `BEGIN IMMEDIATE` makes every claim the only writer, so nothing has to be locked or skipped.

Served by `ix_outbox_messages_pending (kind, locked_until, available_on, id)`: rows that nobody holds are the
entries with `locked_until IS NULL`, expired leases are a range of the same index; the head of an ordering key is
the first entry of its key in `ix_outbox_messages_ordering_key`.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    Connection,
    Executable,
    Select,
    String,
    Update,
    bindparam,
    cast,
    exists,
    func,
    or_,
    select,
    update,
)
from sqlalchemy.orm import aliased
from sqlalchemy.sql.elements import ColumnElement

from mailroom.events import Kind
from mailroom.persistence.tables import OutboxMessage, UtcDateTime

_TIME_FORMAT = "%Y-%m-%d %H:%M:%f000"
"""Six digits of a second, as SQLAlchemy writes them, so that times compare as text."""


class SqliteClaims:
    waits_on_unique_insert = False

    def __init__(self, clock: Callable[[], datetime] | None = None) -> None:
        self._clock = clock

    def now(self) -> ColumnElement[datetime]:
        return func.strftime(_TIME_FORMAT, self._moment(), type_=UtcDateTime)

    def later(self, seconds: float | ColumnElement[Any]) -> ColumnElement[datetime]:
        modifier = cast(seconds, String).concat(" seconds")
        return func.strftime(_TIME_FORMAT, self._moment(), modifier, type_=UtcDateTime)

    def claim(self, kind: Kind, *, token: UUID, lease_seconds: float, limit: int) -> Executable:
        row = aliased(OutboxMessage)
        chosen = (
            select(row.id)
            .where(*self._fresh(row, kind), _heads_its_key(row))
            .order_by(row.available_on, row.id)
            .limit(limit)
        )
        lease = self._lease(chosen, self._fresh(OutboxMessage, kind), token, lease_seconds)
        return lease.returning(OutboxMessage)

    def take_over(self, kind: Kind, *, token: UUID, lease_seconds: float) -> Executable:
        row = aliased(OutboxMessage)
        chosen = select(row.id).where(*self._expired(row, kind)).order_by(row.locked_until, row.id).limit(1)
        lease = self._lease(chosen, self._expired(OutboxMessage, kind), token, lease_seconds)
        return lease.values(attempts=OutboxMessage.attempts + 1).returning(OutboxMessage)

    def due(self) -> Executable:
        return select(
            *(
                exists().where(*condition(OutboxMessage, kind)).label(f"{kind.value}_{name}")
                for kind in Kind
                for name, condition in (("fresh", self._fresh), ("expired", self._expired))
            )
        )

    def lock_keys(self, connection: Connection, keys: Sequence[str]) -> None:
        """Nothing to do: the writer's place is taken before the first id is given."""

    def _moment(self) -> str | ColumnElement[str]:
        clock = self._clock
        if clock is None:
            return "now"
        # Asked when the statement runs, so that a statement can be kept.
        return bindparam(None, callable_=lambda: clock().astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f"), type_=String)

    def _lease(self, chosen: Select[Any], still: Sequence[ColumnElement[bool]], token: UUID, seconds: float) -> Update:
        return (
            update(OutboxMessage)
            .where(OutboxMessage.id.in_(chosen), *still)
            .values(lock_token=token, locked_until=self.later(seconds))
            .execution_options(synchronize_session=False)
        )

    def _fresh(self, row: Any, kind: Kind) -> list[ColumnElement[bool]]:
        return [*_pending(row, kind), row.locked_until.is_(None), row.available_on <= self.now()]

    def _expired(self, row: Any, kind: Kind) -> list[ColumnElement[bool]]:
        return [*_pending(row, kind), row.locked_until < self.now()]


def _pending(row: Any, kind: Kind | ColumnElement[str]) -> list[ColumnElement[bool]]:
    return [row.kind == kind, row.processed_on.is_(None), row.dead_lettered_on.is_(None)]


def _heads_its_key(row: Any) -> ColumnElement[bool]:
    earlier = aliased(OutboxMessage)
    return or_(
        row.ordering_key.is_(None),
        ~exists().where(*_pending(earlier, row.kind), earlier.ordering_key == row.ordering_key, earlier.id < row.id),
    )
