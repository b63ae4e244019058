"""The write point while the outbox is on: an event becomes a row in the transaction that raised it (ADR-100, O2)."""

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, Insert, Row, bindparam, func, insert

from mailroom.envelope import Message
from mailroom.errors import UndecodableError
from mailroom.events import Kind
from mailroom.persistence.capture import Raised
from mailroom.persistence.database import Database
from mailroom.persistence.tables import OutboxMessage, UtcDateTime
from mailroom.serialization import encode


class OutboxWriter:
    """The sink of a data source whose outbox is on."""

    def __init__(self, database: Database, wake: Callable[[Iterable[Kind]], None]) -> None:
        self._database = database
        self._wake = wake

    def seal(self, connection: Connection, raised: Sequence[Raised]) -> Sequence[Message]:
        """Inserts the rows in the order in which the events were raised. `available_on` is the database's time."""
        messages = [encode(one.event, headers=one.headers, ordering_key=one.ordering_key) for one in raised]
        claims = self._database.claims
        keys = sorted({message.ordering_key for message in messages if message.ordering_key is not None})
        if keys:
            claims.lock_keys(connection, keys)
        rows = [_row(message, one) for message, one in zip(messages, raised, strict=True)]
        connection.execute(_insert(claims.later), rows)
        return messages

    def deliver(self, messages: Sequence[Message]) -> None:
        """Wakes the relay; only the processor dispatches what is stored (contract O5, R7)."""
        self._wake({message.kind for message in messages})


@lru_cache
def _insert(later: Callable[[ColumnElement[float]], ColumnElement[datetime]]) -> Insert:
    """A row is due at its time, or after its delay by the database's clock."""
    delayed = later(bindparam("delay_seconds", type_=Float))
    return insert(OutboxMessage).values(available_on=func.coalesce(bindparam("not_before", type_=UtcDateTime), delayed))


def message_of(row: Row[Any]) -> Message:
    """The message that a row holds. Raises UndecodableError if the row was damaged."""
    try:
        headers = json.loads(row.headers)
    except ValueError as error:
        raise UndecodableError(f"the headers of outbox row {row.id} are no JSON: {error}") from None
    if not isinstance(headers, dict):
        raise UndecodableError(f"the headers of outbox row {row.id} are no JSON object")
    return Message(
        message_id=row.message_id,
        kind=Kind(row.kind),
        event_type=row.event_type,
        event_version=row.event_version,
        payload=row.payload,
        headers={str(name): str(value) for name, value in headers.items()},
        occurred_on=row.occurred_on,
        ordering_key=row.ordering_key,
    )


def _row(message: Message, raised: Raised) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "kind": message.kind.value,
        "event_type": message.event_type,
        "event_version": message.event_version,
        "payload": message.payload,
        "headers": json.dumps(dict(message.headers), ensure_ascii=False),
        "ordering_key": message.ordering_key,
        "occurred_on": message.occurred_on,
        "not_before": raised.not_before,
        "delay_seconds": raised.delay.total_seconds() if raised.delay is not None else 0.0,
    }
