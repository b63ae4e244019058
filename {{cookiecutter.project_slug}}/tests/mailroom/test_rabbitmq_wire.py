"""How a message is known on RabbitMQ (contract I7)."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from aiormq import spec

from mailroom.errors import UndecodableError
from mailroom.messaging.attempts import Failure, Journey
from mailroom.messaging.transports.rabbitmq import wire


def test_a_message_without_any_id_is_refused_or_known_by_all_that_it_holds() -> None:
    """Clients for Python add an id by themselves; others do not."""

    def read(body: bytes, *, derive_id: bool = True, **properties: Any) -> UUID:
        found = spec.Basic.Properties(message_type="bank.deposited", **properties)
        return wire.received(found, "bank.deposited", body).message(limit=1_000, derive_id=derive_id).message_id

    with pytest.raises(UndecodableError, match=r"foreign_messages"):
        read(b"{}", derive_id=False)
    assert read(b"{}") == read(b"{}")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert len({read(b"{}"), read(b"[]"), read(b"{}", timestamp=at), read(b"{}", message_id="17")}) == 4


def test_a_message_without_any_id_is_the_same_message_after_it_was_put_aside() -> None:
    """Else a second delivery of it would not be recognised as one, once the first had to be tried again."""
    found = spec.Basic.Properties(message_type="bank.deposited")
    journey, failure = Journey(first_seen=datetime.now(UTC)), Failure.of(ValueError("no"))
    aside = wire.put_aside(found, "bank.deposited", b"{}", journey, failure)
    first, again = (
        wire.received(one, "bank.deposited", b"{}").message(limit=1_000, derive_id=True) for one in (found, aside)
    )
    assert first.message_id == again.message_id
