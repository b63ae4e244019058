"""How a message looks on Service Bus: an AMQP 1.0 message with a JSON body; `headers` says what else of it is ours.

    body             the payload, JSON in UTF-8          message_id, subject      the envelope's id and event type
    content_type     application/json                    application_properties   the headers
    correlation_id   the envelope's, if it has one

The service keeps no more than reason and description with a dead letter, so the description holds what there is to say:
a line such as "3 attempts, 1 redelivery, first seen 2026-01-01T00:00:00+00:00", the exception's name, and the stack.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType

from mailroom.envelope import Message
from mailroom.messaging.attempts import Failure, Journey
from mailroom.messaging.headers import JSON, Received, after_a_failure, body_of, for_a_replay, headers_of
from mailroom.tracing import CORRELATION_ID

HEADERS_LIMIT = 60_000
"""The service takes 64 kB of properties."""
REASON_LENGTH = 1_000
DESCRIPTION_LENGTH = 4_000
"""In characters; the service keeps 4,096 of each."""
_DESCRIPTION = re.compile(
    r"(?P<attempts>\d+) attempts?, (?P<redeliveries>\d+) redeliver(?:y|ies), first seen (?P<first_seen>\S+)\n"
    r"(?P<exception>\S*)\n(?P<stack>.*)",
    re.DOTALL,
)


def outgoing(message: Message, *, limit: int) -> ServiceBusMessage:
    """Raises Reject if the payload is larger than `limit` bytes, or the headers than the service takes."""
    return ServiceBusMessage(
        body_of(message, limit=limit),
        message_id=str(message.message_id),
        subject=message.event_type,
        content_type=JSON,
        correlation_id=_short(message.headers.get(CORRELATION_ID)),
        application_properties=_properties(headers_of(message, limit=HEADERS_LIMIT)),
    )


def received(message: ServiceBusReceivedMessage) -> Received:
    """What was delivered."""
    return Received(
        message_id=_text(message.message_id),
        event_type=_text(message.subject) or "",
        content_type=_text(message.content_type),
        sent_on=None,
        headers=headers(message),
        body=body(message),
    )


def headers(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """Names and texts arrive as bytes."""
    given: Mapping[Any, Any] = message.application_properties or {}
    return {str(_plain(name)): _plain(value) for name, value in given.items()}


def body(message: ServiceBusReceivedMessage) -> bytes:
    """What is one text on the wire is taken as well. Any other value is told in words that are no JSON: no handler
    gets it, and it can be looked at as a dead letter."""
    whole = message.body
    if isinstance(whole, bytes):
        return whole
    if isinstance(whole, str):
        return whole.encode()
    if message.body_type is AmqpMessageBodyType.DATA:
        return b"".join(whole)
    shown = list(whole) if message.body_type is AmqpMessageBodyType.SEQUENCE else whole
    return f"{message.body_type.value}, and no data: {shown!r}".encode()


def again(
    message: ServiceBusReceivedMessage, journey: Journey, failure: Failure, *, due: datetime
) -> ServiceBusMessage:
    """The same message with what it has been through; the service hands it out from `due` on."""
    one = received(message)
    copy = _copy(message, one, after_a_failure(one.headers, journey, failure))
    copy.scheduled_enqueue_time_utc = due
    return copy


def as_new(message: ServiceBusReceivedMessage) -> ServiceBusMessage:
    """The same message with all its attempts before it, for a replay."""
    one = received(message)
    mine = {name: value for name, value in for_a_replay(one.headers).items() if name not in OF_THE_SERVICE}
    return _copy(message, one, mine)


OF_THE_SERVICE = ("DeadLetterReason", "DeadLetterErrorDescription")
"""It writes them among the headers of a dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epitaph:
    """Why a message was given up, and after what."""

    reason: str
    exception: str | None = None
    stack: str | None = None
    attempts: int = 0
    redeliveries: int = 0
    first_seen: datetime | None = None


def description(journey: Journey, failure: Failure) -> str:
    """What the service keeps with a dead letter, beside the reason. Of a long stack the end is kept."""
    head = (
        f"{journey.attempts} attempt{_s(journey.attempts)}, "
        f"{journey.redeliveries} redeliver{'y' if journey.redeliveries == 1 else 'ies'}, "
        f"first seen {journey.first_seen.isoformat()}\n{failure.exception[:200]}\n"
    )
    return head + failure.stack[-(DESCRIPTION_LENGTH - len(head)) :]


def epitaph(message: ServiceBusReceivedMessage) -> Epitaph:
    """As `description` wrote it; what the service gave up by itself, it describes in its own words."""
    reason = _text(message.dead_letter_reason) or "unknown"
    described = _text(message.dead_letter_error_description) or ""
    found = _DESCRIPTION.fullmatch(described)
    try:
        first_seen = datetime.fromisoformat(found["first_seen"]) if found else None
    except ValueError:
        found = None
    if found is None:
        words = BY_THE_SERVICE.get(reason, f"{reason}: {described}" if described else reason)
        return Epitaph(reason=f"the service gave it up: {words}")
    return Epitaph(
        reason=reason,
        exception=found["exception"] or None,
        stack=found["stack"],
        attempts=int(found["attempts"]),
        redeliveries=int(found["redeliveries"]),
        first_seen=first_seen,
    )


BY_THE_SERVICE = {
    "MaxDeliveryCountExceeded": "delivered too often without an answer: its handler may kill the process",
    "TTLExpiredException": "expired",
}
"""What the service calls its own reasons."""


def _copy(message: ServiceBusReceivedMessage, one: Received, properties: dict[str, Any]) -> ServiceBusMessage:
    """Without what the service would act upon a second time: a time to live, a session."""
    return ServiceBusMessage(
        one.body,
        message_id=one.id,
        subject=one.event_type or None,
        content_type=one.content_type,
        correlation_id=_text(message.correlation_id),
        application_properties=_properties(properties),
    )


def _properties(headers: Mapping[str, Any]) -> dict[str | bytes, Any]:
    """What the client has for a type of them."""
    return dict(headers.items())


def _plain(value: Any) -> Any:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _text(value: Any) -> str | None:
    return None if value is None else str(_plain(value))


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _short(text: str | None) -> str | None:
    """The service keeps such properties in at most 128 characters."""
    return text if text is not None and len(text) <= 128 else None
