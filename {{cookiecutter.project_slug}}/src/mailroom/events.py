"""What an event is: a frozen pydantic model with a stable name, a version and an identity (contract O3, O4).

    class OrderPlaced(IntegrationEvent, name="shop.order-placed", version=2, aliases=("order.placed",)):
        order_id: UUID
        sku: str

    @OrderPlaced.upcast(from_version=1)
    def _article_became_sku(data: dict[str, Any]) -> dict[str, Any]:
        data["sku"] = data.pop("article")
        return data

The name, not the Python path, identifies the type in tables and on the wire: the class may be renamed or moved
freely. When the name itself changes, the old one becomes an alias; when the fields change incompatibly, the
version rises and an upcaster reads what is older.
"""

import re
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self, TypeVar
from uuid import UUID, uuid4

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

NAME_LENGTH = 200
"""The longest event name and ordering key, in characters; the tables' columns are that wide (contract T1)."""

LAST_VERSION = 2**31 - 1
"""The highest version that the tables' column holds."""

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
U = TypeVar("U", bound=Upcaster)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENVELOPE = frozenset({"message_id", "occurred_on"})
_RESERVED = _ENVELOPE | {"kind", "event_name", "event_version", "event_aliases", "upcast", "upcasters"}


class Kind(StrEnum):
    """Who an event is for; it decides how a stored event is routed (contract R0)."""

    DOMAIN = "domain"
    INTEGRATION = "integration"


def now() -> datetime:
    """What time it is for an event that happens now."""
    return datetime.now(UTC)


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("lies outside the calendar when converted to UTC") from None


class Event(BaseModel, ABC):
    """The base of DomainEvent and IntegrationEvent; derive from one of these.

    `message_id` and the aware `occurred_on` are stamped at construction and may be passed. They travel in the
    envelope, not in the payload. Private attributes do not travel.

    Defining a class raises TypeError if it has no valid name or version, or uses a reserved name. A base for other
    events has no name and derives from `abc.ABC` as well; creating an instance of it raises TypeError.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    event_name: ClassVar[str] = ""
    event_version: ClassVar[int] = 1
    event_aliases: ClassVar[tuple[str, ...]] = ()
    kind: ClassVar[Kind]
    upcasters: ClassVar[Mapping[int, Upcaster]] = MappingProxyType({})
    """What reads older versions, by the version that it starts from. `upcast` adds to it."""
    _codec: ClassVar[Any] = None

    # The alias keeps an alias generator of a subclass away from these two.
    message_id: UUID = Field(default_factory=uuid4, exclude=True, alias="message_id")
    occurred_on: Annotated[AwareDatetime, AfterValidator(_in_utc)] = Field(
        default_factory=lambda: now(), exclude=True, alias="occurred_on"
    )

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if not cls.event_name:
            raise TypeError(f"{cls.__name__} has no event name, so it is only a base: create a named subclass of it")
        return super().__new__(cls)

    def __init_subclass__(
        cls, *, name: str | None = None, version: int = 1, aliases: Sequence[str] = (), **config: Any
    ) -> None:
        super().__init_subclass__(**config)

    @classmethod
    def __pydantic_init_subclass__(
        cls, *, name: str | None = None, version: int = 1, aliases: Sequence[str] = (), **config: Any
    ) -> None:
        super().__pydantic_init_subclass__(**config)
        if cls.__module__ == __name__:
            return
        _check_fields(cls)
        cls.event_name, cls.event_version, cls.event_aliases, cls.upcasters, cls._codec = "", 1, (), {}, None
        if name is None:
            _check_is_base(cls, version, aliases)
            return
        _check_base(cls)
        _check_name(cls, name, "name")
        _check_version(cls, version)
        _check_aliases(cls, name, aliases)
        cls.event_name, cls.event_version, cls.event_aliases = name, version, tuple(aliases)

    @classmethod
    def upcast(cls, *, from_version: int) -> Callable[[U], U]:
        """Registers the decorated function to turn the JSON object of `from_version` into that of the next version.

        Upcasters are chained up to the version of the class. Raises ValueError for a version that is not older than
        the class, or that already has an upcaster, and TypeError for a class without a name.
        """
        if not cls.event_name:
            raise TypeError(f"{cls.__name__} has no event name: upcasters belong to its named subclasses")
        if not 1 <= from_version < cls.event_version:
            raise ValueError(
                f"{cls.__name__} has version {cls.event_version}, so there is no upcasting from {from_version}: "
                "raise the version of the class, or start from one below it and at least 1"
            )

        def register(function: U) -> U:
            if from_version in cls.upcasters:
                raise ValueError(f"{cls.__name__} already has an upcaster from version {from_version}")
            cls.upcasters = {**cls.upcasters, from_version: function}
            return function

        return register


class DomainEvent(Event, ABC):
    """Something happened, said within this service. Handled in the process that relays it (contract R0)."""

    kind: ClassVar[Kind] = Kind.DOMAIN


class IntegrationEvent(Event, ABC):
    """Something happened, said to other services. Goes to the transport (contract R0)."""

    kind: ClassVar[Kind] = Kind.INTEGRATION


def _check_fields(cls: type[Event]) -> None:
    if not cls.model_config.get("frozen"):
        raise TypeError(f"{cls.__name__} is not frozen; an event says what happened, which does not change any more")
    own = cls.model_fields.keys() - _ENVELOPE
    redefined = {name for name in _ENVELOPE if repr(cls.model_fields[name]) != repr(Event.model_fields[name])}
    fields = [cls.model_fields[name] for name in own]
    written = {field.alias for field in fields} | {field.serialization_alias for field in fields}
    taken = redefined | (_RESERVED & (own | vars(cls).keys())) | (_ENVELOPE & written)
    if taken:
        raise TypeError(
            f"{cls.__name__} cannot define {', '.join(sorted(taken))}: every event has it outside its payload "
            "already; choose another name"
        )


def _check_is_base(cls: type[Event], version: int, aliases: Sequence[str]) -> None:
    if version != 1 or aliases:
        raise TypeError(f"{cls.__name__} has a version or aliases but no name; add name=... to the class line")
    is_parametrised = cls.__pydantic_generic_metadata__["origin"] is not None
    if ABC not in cls.__bases__ and not is_parametrised:
        raise TypeError(
            f'{cls.__name__} has no event name: add name="shop.something-happened" to its class line. '
            "If it is only a base for other events, let it derive from abc.ABC as well."
        )


def _check_base(cls: type[Event]) -> None:
    if issubclass(cls, DomainEvent) == issubclass(cls, IntegrationEvent):
        raise TypeError(f"{cls.__name__} must derive from either DomainEvent or IntegrationEvent")
    if cls.__pydantic_generic_metadata__["parameters"]:
        raise TypeError(
            f"{cls.__name__} is generic, and one name cannot stand for several types; "
            "name a subclass whose type parameters are given"
        )


def _check_name(cls: type[Event], name: object, what: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_LENGTH:
        raise TypeError(
            f"{cls.__name__}: the {what} {str(name)[:NAME_LENGTH]!r} is no event name. "
            f"One starts with a letter or digit, holds only A-Z, a-z, 0-9, '.', '_' and '-', "
            f"and has at most {NAME_LENGTH} characters."
        )


def _check_version(cls: type[Event], version: object) -> None:
    if type(version) is not int or not 1 <= version <= LAST_VERSION:
        raise TypeError(f"{cls.__name__}: the version must be a whole number from 1 to {LAST_VERSION}, not {version!r}")


def _check_aliases(cls: type[Event], name: str, aliases: Sequence[str]) -> None:
    if isinstance(aliases, str):
        raise TypeError(f"{cls.__name__}: aliases must be a tuple of names: aliases=({aliases!r},)")
    for alias in aliases:
        _check_name(cls, alias, "alias")
    if len({name, *aliases}) != 1 + len(aliases):
        raise TypeError(f"{cls.__name__}: an alias repeats the name or another alias")
