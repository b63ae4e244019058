"""How the payload of one event class is written as JSON, and read again (contract O4)."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic_core import SchemaSerializer, SchemaValidator, core_schema, from_json, to_json

from mailroom.errors import UndecodableError
from mailroom.events import Event

_BYTES_AND_FLOATS: core_schema.CoreConfig = {
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
    "ser_json_inf_nan": "strings",
}
_HAS_CONFIG = frozenset({"model", "dataclass", "typed-dict"})
_NAMED_SCHEMAS = frozenset({"fields", "choices"})
_NO_SCHEMA = frozenset({"default", "metadata", "expected", "members", "cls", "config"})


class Codec:
    """Writes and reads the payload of one class, by the same rules at every depth."""

    __slots__ = ("_reader", "_writer")

    def __init__(self, event_type: type[Event]) -> None:
        event_type.model_rebuild()
        schema = _portable(event_type.__pydantic_core_schema__)
        # A nested model's own writer and reader would bring the rules of its own configuration.
        self._writer = SchemaSerializer(schema, _BYTES_AND_FLOATS, _use_prebuilt=False)
        self._reader = SchemaValidator(schema, _BYTES_AND_FLOATS, _use_prebuilt=False)

    def write(self, event: Event, only: set[str] | None = None) -> str:
        """JSON text. Raises whatever the types and serializers of the event raise."""
        return self._writer.to_json(event, include=only, by_alias=True, round_trip=True, warnings=False).decode()

    def read(self, data: dict[str, Any], message_id: UUID, occurred_on: datetime) -> Event:
        """The event. Raises ValidationError, and whatever else its validators raise."""
        # Validators may look at these two, so they are there from the start; and the payload cannot replace them.
        data["message_id"], data["occurred_on"] = message_id, occurred_on
        text = to_json(data, inf_nan_mode="strings", bytes_mode="base64")
        event: Event = self._reader.validate_json(text, by_alias=True, by_name=True)
        return event


def codec_of(event_type: type[Event]) -> Codec:
    """The codec of the class: made when it is first needed, and kept with the class."""
    codec: Codec | None = event_type._codec
    if codec is None:
        codec = event_type._codec = Codec(event_type)
    return codec


def _portable(schema: Any) -> Any:
    """A copy of a schema in which every model writes by the same rules, and none refuses a newer producer's field."""
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


def json_object(what: str, payload: str) -> dict[str, Any]:
    """The payload as data. Raises UndecodableError, which names `what`, if it is no JSON object."""
    try:
        data = from_json(payload)
    except ValueError:
        raise UndecodableError(f"{what}: the payload is no JSON") from None
    if not isinstance(data, dict):
        raise UndecodableError(f"{what}: the payload is no JSON object")
    return data
