"""How events become messages and messages become events again (contract O3, O4, R5).

The payload is a standard JSON object. Decimal, UUID, date, time and enum are written as their usual text or value,
datetime and timedelta as ISO 8601, bytes as URL-safe base64, sets and tuples as arrays, and the floats that JSON
lacks as "NaN", "Infinity" and "-Infinity". Nested models follow the same rules, whatever their own configuration.

`encode` reads back what it wrote and compares: what it lets through, a consumer will read unchanged.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from math import isnan
from typing import Any, get_args
from uuid import UUID

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import SchemaSerializer, SchemaValidator, core_schema, from_json, to_json

from mailroom.envelope import Message
from mailroom.errors import ConfigurationError, SerializationError, UndecodableError, UnknownEventError
from mailroom.events import NAME_LENGTH, Event

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""NUL as JSON escapes it. After an odd number of further backslashes, it is a text that only spells it."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAN = object()
_REMEDY = "Declare the precise type of the field (Decimal instead of Any, the subclass instead of its base)."

_BYTES_AND_FLOATS: core_schema.CoreConfig = {
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
    "ser_json_inf_nan": "strings",
}
_HAS_CONFIG = frozenset({"model", "dataclass", "typed-dict"})
_NAMED_SCHEMAS = frozenset({"fields", "choices"})
_NO_SCHEMA = frozenset({"default", "metadata", "expected", "members", "cls", "config"})

_REASONS_SHOWN = 5
_KNOWN_ERRORS = frozenset(get_args(core_schema.ErrorType))


def encode(event: Event, *, headers: Mapping[str, str] | None = None, ordering_key: str | None = None) -> Message:
    """The message that carries the event. Raises SerializationError if a consumer could not read the event back.

    The error names the event and, where it can be known, the field; it never shows values.
    """
    event_type = type(event)
    name = event_type.event_name
    headers = dict(headers) if headers else {}
    _check_headers(name, headers)
    _check_ordering_key(name, ordering_key)
    codec = _codec_of(event_type)
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


class EventCatalog:
    """The events that one service knows, by name. What is not in it is never loaded or imported."""

    def __init__(self, events: Iterable[type[Event]] = ()) -> None:
        self._by_name: dict[str, type[Event]] = {}
        for event in events:
            self.add(event)

    def add(self, event: type[Event]) -> None:
        """Makes an event known under its name and aliases; adding it again changes nothing.

        Raises ConfigurationError if another class claims one of them, or if this one has no name or cannot be read.
        """
        if not event.event_name:
            raise ConfigurationError(f"{event.__qualname__} has no event name; only named events can be known")
        names = (event.event_name, *event.event_aliases)
        for name in names:
            other = self._by_name.get(name, event)
            if other is not event:
                raise ConfigurationError(
                    f"{_path_of(other)} and {_path_of(event)} both claim the event name {name!r}, so a stored message "
                    "could be either; rename one of them, or drop the alias"
                )
        try:
            _codec_of(event)
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            raise ConfigurationError(f"{_path_of(event)} is not fully defined: {error.message}") from error
        self._by_name.update(dict.fromkeys(names, event))

    def knows(self, event_type: str) -> bool:
        """Whether messages of this name, or alias, can be decoded."""
        return event_type in self._by_name

    def get(self, event_type: str) -> type[Event] | None:
        """The class of this name, or alias."""
        return self._by_name.get(event_type)

    def __iter__(self) -> Iterator[type[Event]]:
        """Each class once, in the order in which they were added."""
        return iter(dict.fromkeys(self._by_name.values()))

    def decode(self, message: Message) -> Event:
        """The event that a message carries, with the identity and time of its envelope.

        Raises UnknownEventError for a name or version that this code does not know, and UndecodableError, without
        any value of the payload, for what no code will ever read.
        """
        event_type = self.get(message.event_type)
        if event_type is None:
            raise UnknownEventError(
                f"no event called {message.event_type!r} is known here; if it was renamed, give its class this alias"
            )
        _check_version(event_type, message)
        what = f"{message.event_type} version {message.event_version}"
        data = _upcast(event_type, message, _json_object(what, message.payload))
        try:
            return _codec_of(event_type).read(data, message.message_id, message.occurred_on)
        except ValidationError as error:
            raise UndecodableError(f"{what}: {_reasons(error)}") from None
        except Exception as error:
            raise UndecodableError(f"{what}: reading it raised {type(error).__name__}") from error


class _Codec:
    """Writes and reads the payload of one class, by the same rules at every depth."""

    __slots__ = ("_reader", "_writer")

    def __init__(self, event_type: type[Event]) -> None:
        event_type.model_rebuild()
        schema = _portable(event_type.__pydantic_core_schema__)
        # A nested model's own writer and reader would bring the rules of its own configuration.
        self._writer = SchemaSerializer(schema, _BYTES_AND_FLOATS, _use_prebuilt=False)
        self._reader = SchemaValidator(schema, _BYTES_AND_FLOATS, _use_prebuilt=False)

    def write(self, event: Event, only: set[str] | None = None) -> str:
        return self._writer.to_json(event, include=only, by_alias=True, round_trip=True, warnings=False).decode()

    def read(self, data: dict[str, Any], message_id: UUID, occurred_on: datetime) -> Event:
        # Validators may look at these two, so they are there from the start; and the payload cannot replace them.
        data["message_id"], data["occurred_on"] = message_id, occurred_on
        text = to_json(data, inf_nan_mode="strings", bytes_mode="base64")
        event: Event = self._reader.validate_json(text, by_alias=True, by_name=True)
        return event


def _codec_of(event_type: type[Event]) -> _Codec:
    codec: _Codec | None = event_type._codec
    if codec is None:
        codec = event_type._codec = _Codec(event_type)
    return codec


def _portable(schema: Any) -> Any:
    """A copy of a schema in which every model writes by the rules above, and none refuses a newer producer's field."""
    if isinstance(schema, list | tuple):
        return type(schema)(_portable(item) for item in schema)
    if not isinstance(schema, dict):
        return schema
    copy: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAMED_SCHEMAS and isinstance(value, dict):
            copy[key] = {name: _portable(item) for name, item in value.items()}
        else:
            copy[key] = value if key in _NO_SCHEMA else _portable(value)
    if copy.get("extra_behavior") == "forbid":
        copy["extra_behavior"] = "ignore"
    if copy.get("type") in _HAS_CONFIG:
        config = {**copy.get("config", {}), **_BYTES_AND_FLOATS}
        if config.get("extra_fields_behavior") == "forbid":
            config["extra_fields_behavior"] = "ignore"
        copy["config"] = config
    return copy


def _written(codec: _Codec, event: Event) -> str:
    try:
        return codec.write(event)
    except Exception as error:
        raise SerializationError(
            f"{type(event).event_name}: {_unwritable_field(codec, event)} cannot be written as JSON "
            f"({type(error).__name__}). Declare a type that JSON can hold; text must not hold lone surrogates."
        ) from error.__cause__


def _unwritable_field(codec: _Codec, event: Event) -> str:
    for field in type(event).model_fields:
        try:
            codec.write(event, only={field})
        except Exception:
            return f"field {field}"
    return "the event"


def _check_reads_back(codec: _Codec, event: Event, payload: str) -> None:
    """Refuses what JSON would silently change: a consumer must get what the producer raised."""
    name = type(event).event_name
    try:
        read = codec.read(_json_object(name, payload), event.message_id, event.occurred_on)
    except ValidationError as error:
        raise SerializationError(f"{name} cannot be read back from JSON: {_reasons(error)}. {_REMEDY}") from None
    except Exception as error:
        raise SerializationError(f"{name} cannot be read back from JSON: {type(error).__name__}") from error
    with suppress(Exception):  # some values refuse to be compared; the slow way knows them
        if read == event:
            return
    place = _difference(event, read)
    if place is not None:
        raise SerializationError(f"{name}: {place} would be read back from JSON as something else. {_REMEDY}")


def _difference(sent: Any, read: Any, place: str = "") -> str | None:
    """The place where two values differ for good, or None.

    Slower than `==` and more patient: NaN is NaN, and an hour that a time zone has twice is still one moment.
    """
    parts = _parts(sent, read)
    for step, one, other in parts:
        if found := _difference(one, other, f"{place}{step}"):
            return found
    return None if parts or _means_the_same(sent, read) else f"field {place.removeprefix('.')}"


def _parts(sent: Any, read: Any) -> list[tuple[str, Any, Any]]:
    """The corresponding parts of two containers of one type and shape; none for everything else."""
    if type(sent) is not type(read):
        return []
    if isinstance(sent, BaseModel):
        names = [*type(sent).model_fields, *(sent.__pydantic_extra__ or ()), *(sent.__pydantic_private__ or ())]
        return [(f".{name}", getattr(sent, name, None), getattr(read, name, None)) for name in names]
    if is_dataclass(sent):
        names = [field.name for field in fields(sent) if field.compare]
        return [(f".{name}", getattr(sent, name), getattr(read, name)) for name in names]
    if isinstance(sent, dict) and sent.keys() == read.keys():
        return [("[key]", value, read[key]) for key, value in sent.items()]
    if isinstance(sent, list | tuple | deque) and len(sent) == len(read):
        return [(f"[{index}]", *pair) for index, pair in enumerate(zip(sent, read, strict=True))]
    return []


def _means_the_same(sent: Any, read: Any) -> bool:
    try:
        return bool(_canonical(sent) == _canonical(read))
    except Exception:
        return False


def _canonical(value: Any) -> Any:
    """A stand-in that is equal for what means the same."""
    if isinstance(value, float) and isnan(value):
        return _NAN
    if isinstance(value, Decimal) and value.is_nan():
        return _NAN, str(value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, tuple):
        return tuple(map(_canonical, value))
    if isinstance(value, set | frozenset):
        return frozenset(map(_canonical, value))
    return value


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


def _reasons(error: ValidationError) -> str:
    """What pydantic found, without what it found it in: no values, no keys of dicts, no words of validators."""
    found = [
        f"{_location(one['loc'])}: {_reason(one['type'], one['msg'], one.get('ctx', {}))}"
        for one in error.errors(include_url=False, include_input=False)
    ]
    reasons = list(dict.fromkeys(found))
    more = len(reasons) - _REASONS_SHOWN
    return "; ".join(reasons[:_REASONS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def _location(loc: tuple[int | str, ...]) -> str:
    if not loc:
        return "the event"
    field, *steps = loc
    return f"field {field}" + "".join(f"[{step}]" if isinstance(step, int) else "[…]" for step in steps)


def _reason(code: str, text: str, context: Mapping[str, Any]) -> str:
    is_ours_to_show = code in _KNOWN_ERRORS and not {"error", "tag"} & context.keys()
    return text if is_ours_to_show else code


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


def _json_object(what: str, payload: str) -> dict[str, Any]:
    try:
        data = from_json(payload)
    except ValueError:
        raise UndecodableError(f"{what}: the payload is no JSON") from None
    if not isinstance(data, dict):
        raise UndecodableError(f"{what}: the payload is no JSON object")
    return data


def _check_version(event_type: type[Event], message: Message) -> None:
    if message.event_version > event_type.event_version:
        raise UnknownEventError(
            f"{message.event_type} has version {message.event_version}, and this code knows it up to version "
            f"{event_type.event_version}; a newer instance may know it"
        )
    for version in range(message.event_version, event_type.event_version):
        if version not in event_type.upcasters:
            raise UnknownEventError(
                f"{message.event_type} has version {message.event_version}, and there is no way from version {version} "
                f"to {event_type.event_version}: add @{event_type.__name__}.upcast(from_version={version})"
            )


def _upcast(event_type: type[Event], message: Message, data: dict[str, Any]) -> dict[str, Any]:
    for version in range(message.event_version, event_type.event_version):
        upcaster = event_type.upcasters[version]
        what = f"{message.event_type}: the upcaster from version {version}, {upcaster.__qualname__},"
        try:
            data = upcaster(data)
        except Exception as error:
            raise UndecodableError(f"{what} raised {type(error).__name__}") from error
        if not isinstance(data, dict):
            raise UndecodableError(f"{what} returned a {type(data).__name__} instead of a dict")
    return data


def _path_of(event_type: type[Event]) -> str:
    return f"{event_type.__module__}.{event_type.__qualname__}"
