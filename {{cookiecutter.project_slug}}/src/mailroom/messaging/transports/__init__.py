"""Transports: how integration events travel, a module for each. Which of them a project has, its answers decide."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from mailroom.errors import ConfigurationError
from mailroom.messaging.consumer import Consumer
from mailroom.messaging.transports.base import Transport
from mailroom.settings import Settings

__all__ = ["PACKAGES", "TransportFactory", "transport_factory"]

TransportFactory = Callable[[Settings, Consumer], Transport]

PACKAGES: dict[str, tuple[str, ...]] = {
    "in_process": (),
    "rabbitmq": ("aiormq",),
    "azure_service_bus": ("azure.servicebus", "azure.identity"),
}
"""Every provider that mailroom knows, and the packages that it needs."""


def transport_factory(provider: str) -> TransportFactory:
    """Builds the transport that `message_bus.provider` names.

    Raises ConfigurationError if there is none of that name, or if the project was made without it.
    """
    if provider not in PACKAGES:
        raise ConfigurationError(
            f"message_bus.provider is {provider!r}, and mailroom knows no such transport; it knows: "
            f"{', '.join(PACKAGES)}"
        )
    needed = (f"{__name__}.{provider}", *PACKAGES[provider])
    missing = [name for name in needed if not _is_there(name)]
    if missing:
        raise ConfigurationError(
            f"message_bus.provider is {provider!r}, and this project was made without that transport: "
            f"{' and '.join(missing)} cannot be found. Run: copier update --data transport={provider}"
        )
    factory: TransportFactory = import_module(f"{__name__}.{provider}").create
    return factory


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # not even the package that it is in
        return False
