"""The events that a service knows, by name: which class reads a message, and by which upcasters (contract O4, R5)."""

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError

from mailroom.codec import codec_of, json_object
from mailroom.envelope import Message
from mailroom.errors import ConfigurationError, UndecodableError, UnknownEventError
from mailroom.events import Event
from mailroom.payload_problems import problems


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
            codec_of(event)
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
        data = _upcast(event_type, message, json_object(what, message.payload))
        try:
            return codec_of(event_type).read(data, message.message_id, message.occurred_on)
        except ValidationError as error:
            raise UndecodableError(f"{what}: {problems(error)}") from None
        except Exception as error:
            raise UndecodableError(f"{what}: reading it raised {type(error).__name__}") from error


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
