"""A message as it was sent, and as an entity holds it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any
from uuid import UUID

REASON, DESCRIPTION = "DeadLetterReason", "DeadLetterErrorDescription"


class State(IntEnum):
    """What `x-opt-message-state` says of a message that is looked at."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a sender. What is not rewritten on its way is kept as it was encoded."""

    fields: dict[str, Any]
    """The properties that a rule may ask for, by the name that a rule has for them."""
    properties: dict[str, Any]
    """The application properties."""
    annotations: dict[str, Any]
    durable: bool = False
    priority: int = 4
    ttl_seconds: float | None = None
    encoded_fields: bytes
    encoded_properties: bytes
    encoded_body: bytes
    size: int
    """Bytes, as they came."""

    @property
    def message_id(self) -> str | None:
        found = self.fields.get("MessageId")
        return None if found is None else str(found)

    @property
    def scheduled_at(self) -> float | None:
        """Seconds since the epoch, if the sender wants it to appear later."""
        at = self.annotations.get("x-opt-scheduled-enqueue-time")
        if at is None:
            return None
        return at.timestamp() if isinstance(at, datetime) else int(at) / 1000


@dataclass(kw_only=True)
class Held:
    """A message in a queue. `number` is its sequence number, times are seconds since the epoch."""

    message: Message
    number: int
    enqueued_at: float
    expires_at: float | None = None
    delivery_count: int = 0
    is_deferred: bool = False
    lock: UUID | None = None
    locked_until: float = 0
    scheduled_at: float | None = None
    dead_letter: dict[str, str] = field(default_factory=dict)
    """The application properties that say why it was given up."""

    @property
    def state(self) -> State:
        if self.scheduled_at is not None:
            return State.SCHEDULED
        return State.DEFERRED if self.is_deferred else State.ACTIVE

    def told(self) -> dict[str, Any]:
        """It in words of JSON, for who asks what is held."""
        until = datetime.fromtimestamp(self.locked_until, UTC).isoformat() if self.lock else None
        return {
            "message_id": self.message.message_id,
            "subject": self.message.fields.get("Label"),
            "sequence_number": self.number,
            "delivery_count": self.delivery_count,
            "state": self.state.name.lower(),
            "locked_until": until,
            "scheduled_at": self.scheduled_at,
            "reason": self.dead_letter.get(REASON),
            "description": self.dead_letter.get(DESCRIPTION),
        }
