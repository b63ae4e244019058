"""What can be configured about brokers: a section for each, read where `message_bus.provider` names it."""

from typing import Annotated
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator, Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError

from mailroom.settings_sections import Count, Seconds, Section

RABBITMQ_EXAMPLE = "amqp://shop:secret@127.0.0.1:5672/"
RABBITMQ_PORTS = {"amqp": 5672, "amqps": 5671}
MANAGEMENT_EXAMPLE = "http://shop:secret@127.0.0.1:15672"

NAMESPACE_PATTERN = r"^[A-Za-z][A-Za-z0-9-]*(\.[A-Za-z0-9-]+)+$"
CONNECTION_STRING_EXAMPLE = "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=shop;SharedAccessKey=secret"


def _strip(value: object) -> object:
    return value.strip() if isinstance(value, str) else value


class RabbitMQSettings(Section):
    """The broker, where `message_bus.provider` is `rabbitmq`."""

    url: SecretStr | None = None
    """Where it is, with user, password and virtual host: `amqp://shop:secret@127.0.0.1:5672/`; `amqps` for TLS."""
    exchange: Annotated[str, BeforeValidator(_strip), Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=120)] = (
        "mailroom.events"
    )
    """The topic exchange over which services tell each other what happened; the same for all of them."""
    declare_topology: bool = True
    """Whether exchange, queues and bindings are made at the start. False where an operator owns them."""
    delivery_limit: Count = Field(20, ge=5)
    """After how many deliveries without an answer a message is dead-lettered: its handler may kill the process."""
    require_route: bool = False
    """Whether an event that no queue is bound to is a failure. Else it is counted, and told once for each name."""
    connect_timeout_seconds: Seconds = 5
    """How many seconds the broker may take to accept a connection."""
    confirm_timeout_seconds: Seconds = 30
    """How many seconds the broker may take to confirm that it has a message."""
    heartbeat_seconds: Annotated[int, Field(ge=1, le=600)] = 10
    """A connection on which nothing is heard for three times as long is taken for dead."""
    management_url: SecretStr | None = None
    """The broker's HTTP API, `http://shop:secret@127.0.0.1:15672`: it tells `doctor` which bindings there are."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, given: SecretStr | None) -> SecretStr | None:
        return _checked(given, tuple(RABBITMQ_PORTS), RABBITMQ_EXAMPLE)

    @field_validator("management_url")
    @classmethod
    def _check_management_url(cls, given: SecretStr | None) -> SecretStr | None:
        return _checked(given, ("http", "https"), MANAGEMENT_EXAMPLE)

    @property
    def safe_url(self) -> str:
        """The URL for people: where the broker is, as whom, without password and parameters."""
        if self.url is None:
            return "no url"
        parts = urlsplit(self.url.get_secret_value())
        user = f"{parts.username}@" if parts.username else ""
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"{parts.scheme}://{user}{host}:{parts.port or RABBITMQ_PORTS[parts.scheme]}{parts.path or '/'}"

    @property
    def virtual_host(self) -> str:
        """What the broker calls it; the URL's path without its first slash."""
        path = urlsplit(self.url.get_secret_value()).path if self.url else ""
        return unquote(path[1:]) or "/"


class ServiceBusSettings(Section):
    """The namespace of Azure Service Bus, where `message_bus.provider` is `azure_service_bus`.

    Either `connection_string` or `namespace` says where it is, and as whom.
    """

    connection_string: SecretStr | None = None
    """Where it is, with a key: `Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=…;SharedAccessKey=…`."""
    namespace: Annotated[str, BeforeValidator(_strip), Field(pattern=NAMESPACE_PATTERN)] | None = None
    """Where it is, as `shop.servicebus.windows.net`; then Azure says who this is: a managed identity, or your login."""
    topic: Annotated[str, BeforeValidator(_strip), Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=120)] = (
        "mailroom.events"
    )
    """The topic over which services tell each other what happened; the same for all of them."""
    declare_topology: bool = True
    """Whether topic, queue, subscription and rules are made at the start. False where an operator owns them."""
    delivery_limit: Annotated[int, Field(ge=5, le=2000)] = 20
    """After how many deliveries without an answer a message is dead-lettered: its handler may kill the process."""
    lock_seconds: Annotated[int, Field(ge=5, le=300)] = 60
    """For how many seconds a message is this service's own; renewed while it is handled."""
    lock_renewal_limit_seconds: Seconds = 900
    """For how many seconds at most a lock is renewed: what is handled for longer may come a second time meanwhile."""
    connect_timeout_seconds: Seconds = 30
    """How many seconds the namespace may take to accept a connection."""
    confirm_timeout_seconds: Seconds = 30
    """How many seconds the namespace may take to confirm that it has a message."""
    management_url: Annotated[str, BeforeValidator(_strip)] | None = None
    """Where the HTTP API of an emulator is. Unset, at port 5300 of its host; a namespace in Azure has its own place."""

    @field_validator("connection_string")
    @classmethod
    def _check_connection_string(cls, given: SecretStr | None) -> SecretStr | None:
        """What it raises never quotes it: it holds a key."""
        if given is None:
            return None
        text = given.get_secret_value().strip()
        parts = _parts_of(text)
        if not _has_host(parts.get("endpoint", "")) or not (
            {"sharedaccesskeyname", "sharedaccesskey"} <= parts.keys() or "sharedaccesssignature" in parts
        ):
            raise PydanticCustomError(
                "connection_string",
                "is no connection string with an endpoint and a key; one looks like {example}",
                {"example": CONNECTION_STRING_EXAMPLE},
            )
        if parts.get("entitypath"):
            raise PydanticCustomError(
                "connection_string",
                "is of {entity} alone, by its EntityPath, and a service needs a topic and a queue; take one of the "
                "whole namespace",
                {"entity": parts["entitypath"]},
            )
        return SecretStr(text)

    @field_validator("management_url")
    @classmethod
    def _check_management_url(cls, given: str | None) -> str | None:
        checked = _checked(SecretStr(given) if given else None, ("http", "https"), "http://127.0.0.1:5300")
        return checked.get_secret_value() if checked else None

    @property
    def host(self) -> str:
        """Where the namespace is, without any secret; with the port, if one is given."""
        return self.namespace or urlsplit(self._parts.get("endpoint", "")).netloc or "no namespace"

    @property
    def is_emulator(self) -> bool:
        return self._parts.get("usedevelopmentemulator", "").lower() == "true"

    @property
    def _parts(self) -> dict[str, str]:
        return _parts_of(self.connection_string.get_secret_value()) if self.connection_string else {}


def _parts_of(connection_string: str) -> dict[str, str]:
    """By their names in lower case, as the service reads them."""
    parts = (part.partition("=") for part in connection_string.split(";"))
    return {name.strip().lower(): value.strip() for name, _, value in parts if name.strip()}


def _checked(given: SecretStr | None, schemes: tuple[str, ...], example: str) -> SecretStr | None:
    """What it raises never quotes the URL: that may hold a password."""
    if given is None:
        return None
    text = given.get_secret_value().strip()
    if not _has_host(text, *schemes):
        raise PydanticCustomError(
            "broker_url",
            "is no URL with {schemes} and a host; one looks like {example}",
            {"schemes": " or ".join(schemes), "example": example},
        )
    return SecretStr(text)


def _has_host(url: str, *schemes: str) -> bool:
    """Whether it names one, with a port that can be, if it has one; and with one of these schemes, if there are any."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and (not schemes or parts.scheme in schemes)
    except ValueError:
        return False
