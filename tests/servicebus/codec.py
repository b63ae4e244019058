"""Messages from their bytes and back: what is not rewritten on the way stays byte for byte."""

from collections.abc import Iterator
from typing import Any, cast
from uuid import UUID

import proton
from proton import Data, Described, symbol, timestamp, ubyte, uint, ulong

from .messages import Held, Message

HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, DATA = 0x70, 0x72, 0x73, 0x74, 0x75
BATCH = 0x80013700

# The places of the fields in the properties section, by the name that a correlation filter has for them.
FIELDS = {
    "MessageId": 0,
    "To": 2,
    "Label": 3,
    "ReplyTo": 4,
    "CorrelationId": 5,
    "ContentType": 6,
    "SessionId": 10,
    "ReplyToSessionId": 12,
}


def sections(encoded: bytes) -> Iterator[tuple[int, Any, bytes]]:
    """The code, the value and the bytes of each section. Raises ValueError for what is no message."""
    rest = memoryview(encoded)
    while rest:
        data = Data()
        try:
            taken = data.decode(bytes(rest))
            data.rewind()
            data.next()
            value = data.get_object()
        except proton.ProtonException as error:
            raise ValueError(str(error)) from error
        if not isinstance(value, Described):
            raise ValueError("a section has no descriptor")
        yield int(cast(int, value.descriptor)), value.value, bytes(rest[:taken])
        rest = rest[taken:]


def messages_of(encoded: bytes, message_format: int) -> list[Message]:
    """The messages of one transfer: a batch has one in each of its data sections. Raises ValueError."""
    if message_format != BATCH:
        return [message_of(encoded)]
    return [message_of(bytes(value)) for code, value, _ in sections(encoded) if code == DATA]


def message_of(encoded: bytes) -> Message:
    """Raises ValueError for what is no message."""
    header: list[Any] = []
    annotations: dict[str, Any] = {}
    fields: list[Any] = []
    properties: dict[str, Any] = {}
    kept = {PROPERTIES: b"", APPLICATION: b""}
    body = b""
    for code, value, raw in sections(encoded):
        if code == HEADER:
            header = value
        elif code == ANNOTATIONS:
            annotations = {str(name): plain(each) for name, each in value.items()}
        elif code == PROPERTIES:
            fields, kept[code] = value, raw
        elif code == APPLICATION:
            properties, kept[code] = {_text(name): plain(each) for name, each in value.items()}, raw
        elif code >= DATA:
            body += raw
    durable, priority, ttl = [*header, None, None, None][:3]
    places = dict(enumerate(fields))
    return Message(
        fields={name: plain(places.get(place)) for name, place in FIELDS.items()},
        properties=properties,
        annotations=annotations,
        durable=bool(durable),
        priority=4 if priority is None else int(priority),
        ttl_seconds=None if ttl is None else int(ttl) / 1000,
        encoded_fields=kept[PROPERTIES],
        encoded_properties=kept[APPLICATION],
        encoded_body=body,
        size=len(encoded),
    )


def encoded(held: Held, *, state: bool = False) -> bytes:
    """A message as it is delivered; `state` adds what only a peeked one says."""
    message = held.message
    ttl = None if message.ttl_seconds is None else uint(min(int(message.ttl_seconds * 1000), 2**32 - 1))
    header = [message.durable, ubyte(message.priority), ttl, held.delivery_count == 0, uint(held.delivery_count)]
    annotations: dict[symbol, Any] = {symbol(name): value for name, value in message.annotations.items()}
    annotations[symbol("x-opt-sequence-number")] = held.number
    annotations[symbol("x-opt-enqueued-time")] = milliseconds(held.enqueued_at)
    if held.lock is not None:
        annotations[symbol("x-opt-locked-until")] = milliseconds(held.locked_until)
    if state:
        annotations[symbol("x-opt-message-state")] = int(held.state)
    properties = message.encoded_properties
    if held.dead_letter:
        properties = section(APPLICATION, {**message.properties, **held.dead_letter})
    return b"".join(
        (
            section(HEADER, header),
            section(ANNOTATIONS, annotations),
            message.encoded_fields,
            properties,
            message.encoded_body,
        )
    )


def section(code: int, value: Any) -> bytes:
    data = Data()
    data.put_object(Described(ulong(code), value))
    return bytes(data.encode())


def milliseconds(seconds: float) -> timestamp:
    return timestamp(int(seconds * 1000))


def array(kind: int, values: list[Any]) -> proton.Array:
    return proton.Array(cast(Any, proton.UNDESCRIBED), kind, *values)


def elements(value: Any) -> list[Any]:
    """The values of an AMQP array or list."""
    return list(value.elements if isinstance(value, proton.Array) else value or [])


def plain(value: Any) -> Any:
    """A value that outlives the bytes it was read from."""
    if isinstance(value, memoryview):
        return bytes(value)
    return value


def uuids(value: Any) -> list[UUID]:
    return [each if isinstance(each, UUID) else UUID(bytes=bytes(each)) for each in elements(value)]


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else bytes(name).decode() if isinstance(name, memoryview) else name
