"""The rules of a subscription: which messages it wants."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .messages import Message


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Everything that is named must be equal. `fields` has the names of the API: Label is the subject."""

    fields: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)

    def wants(self, message: Message) -> bool:
        return all(_text(message.fields.get(name)) == value for name, value in self.fields.items()) and all(
            name in message.properties and _is_equal(message.properties[name], value)
            for name, value in self.properties.items()
        )


@dataclass(frozen=True)
class Always:
    """The true filter, and with False the false one."""

    answer: bool = True

    def wants(self, message: Message) -> bool:
        return self.answer


Filter = Correlation | Always


def _is_equal(one: Any, other: Any) -> bool:
    """Python takes True for 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
