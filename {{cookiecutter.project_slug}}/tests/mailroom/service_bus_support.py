"""Azure Service Bus for tests: names of their own in one namespace, and a look past mailroom.

The namespace is the one that TEST_SERVICEBUS_CONNECTION_STRING names, with the management of an emulator at
TEST_SERVICEBUS_MANAGEMENT_URL.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any
from uuid import uuid4

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from support import Compose, quick

from mailroom import Handlers, Mailroom
from mailroom.messaging.transports.azure_service_bus import ServiceBusTransport
from mailroom.messaging.transports.azure_service_bus.namespace import Namespace
from mailroom.settings import ServiceBusSettings
from mailroom.testing.databases import is_required

CONNECTION_STRING = "TEST_SERVICEBUS_CONNECTION_STRING"
MANAGEMENT_URL = "TEST_SERVICEBUS_MANAGEMENT_URL"


def need_service_bus() -> None:
    """Skips the test if no namespace is named; fails it where TEST_REQUIRE names azure_service_bus."""
    if os.environ.get(CONNECTION_STRING):
        return
    what = f"no azure_service_bus: {CONNECTION_STRING} names no namespace and no emulator"
    if is_required("azure_service_bus"):
        pytest.fail(what)
    pytest.skip(what)


class Bus:
    """The namespace as one test sees it: a topic and a prefix that nobody else has."""

    def __init__(self) -> None:
        self.prefix = f"bank-{uuid4().hex[:12]}"
        self.topic = f"{self.prefix}-events"
        self.queue = f"{self.prefix}.events"
        self._prefixes = [self.prefix]

    @property
    def connection(self) -> dict[str, Any]:
        """The part of the section `service_bus` that says where it is."""
        given = {"connection_string": os.environ[CONNECTION_STRING], "management_url": os.environ.get(MANAGEMENT_URL)}
        return {name: value for name, value in given.items() if value}

    def settings(self, **bus: Any) -> dict[str, Any]:
        """The sections `message_bus` and `service_bus`, quick to retry."""
        quick = {
            "retry_limit": 1,
            "retry_min_interval_seconds": 0.05,
            "retry_max_interval_seconds": 0.2,
            "redelivery_intervals_seconds": [0.3],
        }
        return {
            "message_bus": {"provider": "azure_service_bus", "endpoint_prefix": self.prefix, **quick, **bus},
            "service_bus": {**self.connection, "topic": self.topic},
        }

    def another_service(self) -> str:
        """A further prefix on the same topic; its queue is deleted as well."""
        self._prefixes.append(f"{self.prefix}-{len(self._prefixes)}")
        return self._prefixes[-1]

    @asynccontextmanager
    async def administration(self) -> AsyncIterator[ServiceBusAdministrationClient]:
        async with Namespace(ServiceBusSettings(**self.connection)).administration() as client:
            yield client

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ServiceBusClient]:
        async with ServiceBusClient.from_connection_string(os.environ[CONNECTION_STRING]) as client:
            yield client

    async def publish(self, body: Any, **fields: Any) -> None:
        """Puts a message into the service's queue, past mailroom."""
        async with self.client() as client, client.get_queue_sender(self.queue) as sender:
            await sender.send_messages(ServiceBusMessage(body, **fields))

    async def lying(self, queue: str | None = None) -> list[ServiceBusReceivedMessage]:
        """What is in a queue, the oldest first."""
        async with self.client() as client, client.get_queue_receiver(queue or self.queue) as receiver:
            return await receiver.peek_messages(max_message_count=100)

    async def clean(self) -> None:
        async with self.administration() as administration:
            for delete, name in (
                *((administration.delete_queue, f"{prefix}.events") for prefix in self._prefixes),
                (administration.delete_topic, self.topic),
            ):
                with suppress(ResourceNotFoundError):
                    await delete(name)


@contextmanager
def bus() -> Iterator[Bus]:
    need_service_bus()
    yield Bus()


async def composed(
    compose: Compose, bus: Bus, *handlers: Handlers, sections: dict[str, Any] | None = None, **settings: Any
) -> Mailroom:
    return await compose(*handlers, **quick(bus.settings(**settings), sections))


def transport_of(mailroom: Mailroom) -> ServiceBusTransport:
    assert isinstance(mailroom.transport, ServiceBusTransport)
    return mailroom.transport
