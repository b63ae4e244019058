"""Which rows of the outbox an operator means: by id, or by state, event, ordering key and age."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import ColumnElement, and_, case

from mailroom.persistence.claims import Claims
from mailroom.persistence.tables import OutboxMessage


class State(StrEnum):
    """Where a row of the outbox stands."""

    PENDING = "pending"
    LEASED = "leased"
    PROCESSED = "processed"
    DEAD_LETTERED = "dead-lettered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Rows that meet every condition that is given; without one, all rows."""

    ids: Sequence[int] | None = None
    state: State | None = None
    event_type: str | None = None
    """The name as it is stored: after a renaming, older rows have the alias."""
    ordering_key: str | None = None
    older_than: timedelta | None = None
    """The event occurred longer ago than this, by the database's clock."""

    def conditions(self, claims: Claims) -> list[ColumnElement[bool]]:
        """All of them but the ids, which may be too many for one statement."""
        found = [] if self.state is None else [is_in(self.state)]
        if self.event_type is not None:
            found.append(OutboxMessage.event_type == self.event_type)
        if self.ordering_key is not None:
            found.append(OutboxMessage.ordering_key == self.ordering_key)
        if self.older_than is not None:
            found.append(OutboxMessage.occurred_on < _ago(claims, self.older_than))
        return found


EVERYTHING = Selection()


def is_in(state: State) -> ColumnElement[bool]:
    """Whether a row is in that state. A row is in one at a time."""
    row = OutboxMessage
    unfinished = and_(row.processed_on.is_(None), row.dead_lettered_on.is_(None))
    return {
        State.PENDING: and_(unfinished, row.lock_token.is_(None)),
        State.LEASED: and_(unfinished, row.lock_token.is_not(None)),
        State.PROCESSED: and_(row.processed_on.is_not(None), row.dead_lettered_on.is_(None)),
        State.DEAD_LETTERED: row.dead_lettered_on.is_not(None),
    }[state]


def state_column() -> ColumnElement[str]:
    """The state of a row, as the text of `State`."""
    return case(*((is_in(state), state.value) for state in State))


def _ago(claims: Claims, age: timedelta) -> ColumnElement[datetime]:
    return claims.later(-age.total_seconds())
