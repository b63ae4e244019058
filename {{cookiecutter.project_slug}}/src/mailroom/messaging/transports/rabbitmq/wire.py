"""How a message looks on RabbitMQ: an AMQP 0-9-1 message with a JSON body; `headers` says what of its headers is ours.

body             the payload, JSON in UTF-8             message_id, type    the envelope's id and event type
content_type     application/json                       timestamp           when it happened, to the second
correlation_id   the envelope's, if it has one          delivery_mode       2: the broker writes it to disk
"""

from collections.abc import Mapping
from typing import Any

from aiormq import spec

from mailroom.envelope import Message
from mailroom.messaging.attempts import Failure, Journey
from mailroom.messaging.headers import JSON, Received, after_a_failure, for_a_replay, headers_of
from mailroom.tracing import CORRELATION_ID

DELIVERY_COUNT = "x-delivery-count"
"""How many times before a quorum queue has delivered the message and got no answer."""

HEADERS_LIMIT = 64_000
"""Headers travel in one frame, of 128 kB with most brokers."""
PERSISTENT = 2


def properties_of(message: Message) -> spec.Basic.Properties:
    """All of the envelope but its payload. Raises Reject if the headers do not fit into a frame."""
    return spec.Basic.Properties(
        content_type=JSON,
        delivery_mode=PERSISTENT,
        message_id=str(message.message_id),
        message_type=message.event_type,
        timestamp=message.occurred_on,
        correlation_id=_short(message.headers.get(CORRELATION_ID)),
        headers=headers_of(message, limit=HEADERS_LIMIT),
    )


def received(properties: spec.Basic.Properties, routing_key: str, body: bytes) -> Received:
    """What was delivered; a foreign publisher may have said what it is by the routing key alone."""
    return Received(
        message_id=properties.message_id,
        event_type=properties.message_type or routing_key,
        content_type=properties.content_type,
        sent_on=properties.timestamp,
        headers=properties.headers or {},
        body=body,
    )


def put_aside(
    properties: spec.Basic.Properties, routing_key: str, body: bytes, journey: Journey, failure: Failure
) -> spec.Basic.Properties:
    """The same message with what it has been through, for a delay queue or the dead letters."""
    one = received(properties, routing_key, body)
    # the queue's own name takes the routing key's place
    return _again(properties, one.id, one.event_type, after_a_failure(one.headers, journey, failure))


def as_new(properties: spec.Basic.Properties, message_id: str, event_type: str) -> spec.Basic.Properties:
    """The same message with all its attempts before it, for a replay."""
    return _again(properties, message_id, event_type, for_a_replay(properties.headers or {}))


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


def _short(text: str | None) -> str | None:
    """AMQP keeps such properties in at most 255 bytes."""
    return text if text is not None and len(text.encode()) <= 255 else None
