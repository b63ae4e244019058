"""How an event becomes a message, and what is refused because it would not survive that (contract O3, O4).

The payload is a standard JSON object. Decimal, UUID, date, time and enum are written as their usual text or value,
datetime and timedelta as ISO 8601, bytes as URL-safe base64, sets and tuples as arrays, and the floats that JSON
lacks as "NaN", "Infinity" and "-Infinity". Nested models follow the same rules, whatever their own configuration.

`encode` reads back what it wrote and compares: what it lets through, a consumer will read unchanged.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from mailroom.codec import Codec, codec_of, json_object
from mailroom.envelope import Message
from mailroom.errors import SerializationError
from mailroom.events import NAME_LENGTH, Event
from mailroom.payload_problems import problems
from mailroom.round_trip import difference

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""NUL as JSON escapes it. After an odd number of further backslashes, it is a text that only spells it."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_REMEDY = "Declare the precise type of the field (Decimal instead of Any, the subclass instead of its base)."


def encode(event: Event, *, headers: Mapping[str, str] | None = None, ordering_key: str | None = None) -> Message:
    """The message that carries the event. Raises SerializationError if a consumer could not read the event back.

    The error names the event and, where it can be known, the field; it never shows values.
    """
    event_type = type(event)
    name = event_type.event_name
    headers = dict(headers) if headers else {}
    _check_headers(name, headers)
    _check_ordering_key(name, ordering_key)
    codec = codec_of(event_type)
    payload = _written(codec, event)
    if "\\u0000" in payload and _NUL.search(payload):
        place = (_place_of_nul(from_json(payload)) or "").removeprefix(".")
        raise SerializationError(f"{name}: field {place} holds the character NUL, which databases refuse in text")
    _check_reads_back(codec, event, payload)
    return Message(
        message_id=event.message_id,
        kind=event_type.kind,
        event_type=name,
        event_version=event_type.event_version,
        payload=payload,
        headers=headers,
        occurred_on=event.occurred_on,
        ordering_key=ordering_key,
    )


def _written(codec: Codec, event: Event) -> str:
    try:
        return codec.write(event)
    except Exception as error:
        raise SerializationError(
            f"{type(event).event_name}: {_unwritable_field(codec, event)} cannot be written as JSON "
            f"({type(error).__name__}). Declare a type that JSON can hold; text must not hold lone surrogates."
        ) from error.__cause__


def _unwritable_field(codec: Codec, event: Event) -> str:
    for field in type(event).model_fields:
        try:
            codec.write(event, only={field})
        except Exception:
            return f"field {field}"
    return "the event"


def _check_reads_back(codec: Codec, event: Event, payload: str) -> None:
    """Refuses what JSON would silently change: a consumer must get what the producer raised."""
    name = type(event).event_name
    try:
        read = codec.read(json_object(name, payload), event.message_id, event.occurred_on)
    except ValidationError as error:
        raise SerializationError(f"{name} cannot be read back from JSON: {problems(error)}. {_REMEDY}") from None
    except Exception as error:
        raise SerializationError(f"{name} cannot be read back from JSON: {type(error).__name__}") from error
    with suppress(Exception):  # some values refuse to be compared; the slow way knows them
        if read == event:
            return
    place = difference(event, read)
    if place is not None:
        raise SerializationError(f"{name}: {place} would be read back from JSON as something else. {_REMEDY}")


def _place_of_nul(value: Any, place: str = "") -> str | None:
    """The place of the first text with a NUL in JSON data."""
    if isinstance(value, str):
        return place if "\0" in value else None
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        if any("\0" in key for key in value):
            return f"{place}[key]"
        items = ((f".{key}" if not place else "[key]", item) for key, item in value.items())
    elif isinstance(value, list):
        items = ((f"[{index}]", item) for index, item in enumerate(value))
    return next((found for step, item in items if (found := _place_of_nul(item, f"{place}{step}"))), None)


def _check_headers(name: str, headers: Mapping[str, str]) -> None:
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise SerializationError(f"{name}: header {key!r} is a {type(value).__name__}; headers are text")
        if not key or not _is_storable(key) or not _is_storable(value):
            raise SerializationError(f"{name}: header {key!r} has no name, or holds NUL or a lone surrogate")


def _check_ordering_key(name: str, key: str | None) -> None:
    if key is None:
        return
    if not isinstance(key, str) or not 1 <= len(key) <= NAME_LENGTH or not _is_storable(key):
        raise SerializationError(
            f"{name}: the ordering key must be text of 1 to {NAME_LENGTH} characters without NUL or lone surrogates"
        )


def _is_storable(text: str) -> bool:
    return "\0" not in text and _SURROGATE.search(text) is None
