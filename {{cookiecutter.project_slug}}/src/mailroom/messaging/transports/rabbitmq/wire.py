"""How a message looks on RabbitMQ: an AMQP 0-9-1 message with a JSON body, and what of its headers is ours.

    body               the payload, JSON in UTF-8           message_id, type    the envelope's id and event type
    content_type       application/json                     timestamp           when it happened, to the second
    correlation_id     the envelope's, if it has one        delivery_mode       2: the broker writes it to disk
    mailroom-version   the event's version                  mailroom-occurred-on, mailroom-ordering-key

The other headers of the envelope travel under their own names; names with `x-` are the broker's. What a message has
been through here is written into headers when it is put aside: mailroom-attempts, mailroom-redeliveries,
mailroom-first-seen, mailroom-reason, mailroom-exception, mailroom-stack.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

from aiormq import spec

from mailroom.envelope import Message
from mailroom.errors import Reject, UndecodableError
from mailroom.events import LAST_VERSION, NAME_LENGTH, Kind
from mailroom.messaging.attempts import Failure, Journey
from mailroom.tracing import CORRELATION_ID

JSON = "application/json"
OURS = "mailroom-"
VERSION = "mailroom-version"
OCCURRED_ON = "mailroom-occurred-on"
ORDERING_KEY = "mailroom-ordering-key"
ATTEMPTS = "mailroom-attempts"
REDELIVERIES = "mailroom-redeliveries"
FIRST_SEEN = "mailroom-first-seen"
REASON = "mailroom-reason"
EXCEPTION = "mailroom-exception"
STACK = "mailroom-stack"
DELIVERY_COUNT = "x-delivery-count"
"""How many times before a quorum queue has delivered the message and got no answer."""

HEADERS_LIMIT = 64_000
"""Headers travel in one frame, of 128 kB with most brokers."""
PERSISTENT = 2
FOREIGN = UUID("9c1d1f0e-6f0b-4a43-9d0e-6c1a4b1f2d55")
"""The namespace of ids that are derived for messages of other publishers."""


def body_of(message: Message, *, limit: int) -> bytes:
    """The payload as bytes. Raises Reject if it is larger than `limit`: no attempt would change that."""
    body = message.payload.encode()
    if len(body) > limit:
        raise Reject(
            f"the payload has {len(body)} bytes, and message_bus.max_payload_bytes allows {limit}; send a reference "
            "to what is large, or raise the limit in every service that handles the event"
        )
    return body


def properties_of(message: Message) -> spec.Basic.Properties:
    """All of the envelope but its payload. Raises Reject if the headers do not fit into a frame."""
    headers: dict[str, Any] = {
        **message.headers,
        VERSION: message.event_version,
        OCCURRED_ON: message.occurred_on.isoformat(),
    }
    if message.ordering_key is not None:
        headers[ORDERING_KEY] = message.ordering_key
    size = sum(len(name) + len(str(value)) for name, value in headers.items())
    if size * 4 > HEADERS_LIMIT:
        size = sum(len(name.encode()) + len(str(value).encode()) for name, value in headers.items())
    if size > HEADERS_LIMIT:
        raise Reject(f"the headers have {size} bytes, and one frame of the broker holds {HEADERS_LIMIT} of them")
    return spec.Basic.Properties(
        content_type=JSON,
        delivery_mode=PERSISTENT,
        message_id=str(message.message_id),
        message_type=message.event_type,
        timestamp=message.occurred_on,
        correlation_id=_short(message.headers.get(CORRELATION_ID)),
        headers=headers,
    )


def message_of(
    properties: spec.Basic.Properties, routing_key: str, body: bytes, *, limit: int, derive_id: bool
) -> Message:
    """The message that was delivered. Raises UndecodableError for what is none.

    `derive_id`: a message of a foreign publisher, without an id that is a UUID, gets one that follows from what it
    is, so that a second delivery of it is recognised. Two that are alike in all are one then.
    """
    if properties.content_type not in (None, "", JSON):
        raise UndecodableError(f"its content type is {properties.content_type!r}, and only {JSON} is read")
    if len(body) > limit:
        raise UndecodableError(f"its payload has {len(body)} bytes, and message_bus.max_payload_bytes allows {limit}")
    try:
        payload = body.decode()
    except UnicodeDecodeError:
        raise UndecodableError("its payload is no UTF-8") from None
    if "\0" in payload:
        raise UndecodableError("its payload holds the character NUL")
    headers = properties.headers or {}
    event_type = properties.message_type or routing_key
    if not 1 <= len(event_type) <= NAME_LENGTH:
        raise UndecodableError(f"its type has {len(event_type)} characters, and an event name has 1 to {NAME_LENGTH}")
    return Message(
        message_id=_message_id(properties, routing_key, body, derive_id=derive_id),
        kind=Kind.INTEGRATION,
        event_type=event_type,
        event_version=_version(headers.get(VERSION, 1)),
        payload=payload,
        headers=_others(headers),
        occurred_on=_occurred_on(properties),
        ordering_key=_ordering_key(headers.get(ORDERING_KEY)),
    )


def journey_of(headers: Mapping[str, Any] | None, *, now: datetime) -> Journey:
    """What the message has been through so far; what is not readable counts as not yet."""
    found = headers or {}
    return Journey(
        first_seen=_time(found.get(FIRST_SEEN)) or now,
        attempts=_count(found.get(ATTEMPTS)),
        redeliveries=_count(found.get(REDELIVERIES)),
    )


def put_aside(
    properties: spec.Basic.Properties, routing_key: str, body: bytes, journey: Journey, failure: Failure
) -> spec.Basic.Properties:
    """The same message with what it has been through, for a delay queue or the dead letters."""
    headers = {name: value for name, value in (properties.headers or {}).items() if not name.startswith("x-")}
    headers |= {
        ATTEMPTS: journey.attempts,
        REDELIVERIES: journey.redeliveries,
        FIRST_SEEN: journey.first_seen.isoformat(),
        REASON: failure.reason,
        EXCEPTION: failure.exception[:200],
        STACK: failure.stack,
    }
    # the queue's own name takes the routing key's place
    event_type = properties.message_type or routing_key
    return _again(properties, id_of(properties, routing_key, body), event_type, headers)


def as_new(properties: spec.Basic.Properties, message_id: str, event_type: str) -> spec.Basic.Properties:
    """The same message with all its attempts before it, for a replay."""
    ours = (ATTEMPTS, REDELIVERIES, FIRST_SEEN, REASON, EXCEPTION, STACK)
    headers = {
        name: value
        for name, value in (properties.headers or {}).items()
        if name not in ours and not name.startswith("x-")
    }
    return _again(properties, message_id, event_type, headers)


def id_of(properties: spec.Basic.Properties, routing_key: str, body: bytes) -> str:
    """As its publisher wrote it, or as it would be read: a copy that is put aside must stay the same message."""
    return properties.message_id or str(_derived_id(properties, routing_key, body))


def _derived_id(properties: spec.Basic.Properties, event_type: str, body: bytes) -> UUID:
    """Follows from what the message is, where its publisher gave it no id."""
    parts = (event_type, properties.message_type or "", str(properties.timestamp or ""))
    return uuid5(FOREIGN, "\0".join((*parts, body.decode(errors="backslashreplace"))))


def first_routing_key(headers: Mapping[str, Any]) -> str | None:
    """The one that a message was published with, before the broker dead-lettered it for the first time."""
    try:
        return str(headers["x-death"][-1]["routing-keys"][0])
    except (KeyError, IndexError, TypeError):
        return None


def _again(
    properties: spec.Basic.Properties, message_id: str, event_type: str, headers: dict[str, Any]
) -> spec.Basic.Properties:
    """Without what the broker would refuse or act upon a second time: the sender's user, an expiration, a priority."""
    return spec.Basic.Properties(
        content_type=properties.content_type,
        content_encoding=properties.content_encoding,
        delivery_mode=PERSISTENT,
        message_id=message_id,
        message_type=event_type,
        timestamp=properties.timestamp,
        correlation_id=properties.correlation_id,
        app_id=properties.app_id,
        headers=headers,
    )


def _message_id(properties: spec.Basic.Properties, routing_key: str, body: bytes, *, derive_id: bool) -> UUID:
    given = properties.message_id or ""
    try:
        return UUID(given)
    except ValueError:
        pass
    if not derive_id:
        raise UndecodableError(
            f"its message id is {given[:100]!r} and no UUID, so a second delivery could not be recognised; let its "
            'publisher set one, or set message_bus.foreign_messages = "derive-id"'
        )
    return uuid5(FOREIGN, given) if given else _derived_id(properties, routing_key, body)


def _occurred_on(properties: spec.Basic.Properties) -> datetime:
    headers = properties.headers or {}
    return _time(headers.get(OCCURRED_ON)) or _in_utc(properties.timestamp) or datetime.now(UTC)


def _time(value: Any) -> datetime | None:
    try:
        return _in_utc(datetime.fromisoformat(value))
    except (TypeError, ValueError):
        return None


def _in_utc(value: datetime | None) -> datetime | None:
    if value is None:
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _version(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= LAST_VERSION:
        raise UndecodableError(f"its header {VERSION} is {str(value)[:100]!r} and no version")
    return value


def _ordering_key(value: Any) -> str | None:
    return value[:NAME_LENGTH] if isinstance(value, str) and value else None


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _others(headers: Mapping[str, Any]) -> dict[str, str]:
    """The envelope's own headers: text, neither ours nor the broker's."""
    return {
        name: value for name, value in headers.items() if isinstance(value, str) and not name.startswith((OURS, "x-"))
    }


def _short(text: str | None) -> str | None:
    """AMQP keeps such properties in at most 255 bytes."""
    return text if text is not None and len(text.encode()) <= 255 else None
