"""A shop on a real RabbitMQ, with an exchange and queues of its own that are gone after the test."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

import aio_pika
import databases
import pytest
from aiormq import Channel, spec
from aiormq.abc import DeliveredMessage
from click.testing import Result
from pydantic import SecretStr
from rabbitmq_support import need_broker, url
from typer.testing import CliRunner

from mailroom import Context, Handlers, IntegrationEvent, Mailroom, Reject, Settings, serialization
from mailroom.cli import create_cli
from mailroom.errors import ConfigurationError
from mailroom.messaging.attempts import Failure, Journey
from mailroom.messaging.transports.rabbitmq import RabbitMQTransport, wire
from mailroom.messaging.transports.rabbitmq.topology import Topology
from mailroom.persistence.engines import check_present
from mailroom.settings import DatabaseSettings
from mailroom.testing.databases import is_required

T = TypeVar("T")

NOWHERE = {
    "sqlite": "sqlite:////no/such/folder/shop.db",
    "postgres": "postgresql://nobody@127.0.0.1:1/shop",
    "sqlserver": "mssql://nobody@127.0.0.1:1/shop",
}
"""Databases that are not there: what is done on a broker asks none."""


class Placed(IntegrationEvent, name="shop.order-placed"):
    sku: str


handlers = Handlers()


@handlers.on(Placed)
async def reserve(event: Placed, context: Context[Any]) -> None: ...


class Shop:
    """A service of which only the command line and the broker are looked at."""

    def __init__(self, url: str) -> None:
        self.name = f"test-{uuid4().hex[:12]}"
        self.url = url
        self.handlers: list[Handlers] = [handlers]
        self.sections: dict[str, Any] = {
            "database": {"url": NOWHERE[databases.KINDS[0]]},
            "message_bus": {"provider": "rabbitmq", "endpoint_prefix": self.name},
            "rabbitmq": {"url": SecretStr(url), "exchange": self.name},
        }
        self.app = create_cli("shop", settings=self.settings, mailroom=self.compose)

    @property
    def topology(self) -> Topology:
        return Topology.of(self.settings(), [Placed.event_name])

    def settings(self) -> Settings:
        return Settings(**self.sections)

    def compose(self) -> Mailroom:
        return Mailroom(self.settings(), handlers=self.handlers, command="shop")

    def __call__(self, *arguments: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(self.app, arguments, env={"COLUMNS": "300"}, input=answer)

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)

    def on_channel(self, work: Callable[[Channel], Awaitable[T]]) -> T:
        """What is done on the broker past mailroom."""
        return asyncio.run(on_channel(self.url, work))

    def on_transport(self, work: Callable[[RabbitMQTransport], Awaitable[T]]) -> T:
        async def run() -> T:
            service = self.compose()
            assert isinstance(service.transport, RabbitMQTransport)
            try:
                return await work(service.transport)
            finally:
                await service.transport.stop()
                await service.close()

        return asyncio.run(run())

    def give_up(self, *skus: str, into: str = "dead-letters") -> list[str]:
        """Puts an order for each into the dead letters, as the service does. Returns their message ids."""
        messages = [serialization.encode(Placed(sku=sku)) for sku in skus]

        async def work(channel: Channel) -> None:
            for message in messages:
                journey = Journey(first_seen=datetime(2026, 1, 31, tzinfo=UTC), attempts=6, redeliveries=3)
                body, failure = message.payload.encode(), Failure.of(Reject("honey is sold out"))
                properties = wire.put_aside(wire.properties_of(message), message.event_type, body, journey, failure)
                await channel.basic_publish(body, routing_key=f"{self.name}.{into}", properties=properties)

        self.on_channel(work)
        return [str(message.message_id) for message in messages]

    def publish(self, body: bytes, routing_key: str, properties: spec.Basic.Properties, exchange: str) -> bool:
        """Whether a queue took it."""

        async def work(channel: Channel) -> bool:
            answer = await channel.basic_publish(
                body, exchange=exchange, routing_key=routing_key, properties=properties, mandatory=True
            )
            return isinstance(answer, spec.Basic.Ack)

        return self.on_channel(work)

    def count(self, queue: str) -> int:
        """Those in a queue that nobody holds."""

        async def work(channel: Channel) -> int:
            return (await channel.queue_declare(f"{self.name}.{queue}", passive=True)).message_count or 0

        return self.on_channel(work)

    def take(self, queue: str) -> list[DeliveredMessage]:
        """Empties a queue."""

        async def work(channel: Channel) -> list[DeliveredMessage]:
            found = []
            while True:
                delivered = await channel.basic_get(f"{self.name}.{queue}", no_ack=True)
                if isinstance(delivered.delivery, spec.Basic.GetEmpty):
                    return found
                found.append(delivered)

        return self.on_channel(work)

    def wait_for(self, count: int, queue: str) -> None:
        """What the broker does by itself comes when it comes; the test's own timeout is the bound."""
        while self.count(queue) != count:
            pass

    def clear(self) -> None:
        async def work(channel: Channel) -> None:
            for queue in self.topology.queues:
                await channel.queue_delete(queue)
            await channel.exchange_delete(self.name)

        self.on_channel(work)


async def on_channel(url: str, work: Callable[[Channel], Awaitable[T]]) -> T:
    connection = await aio_pika.connect(url)
    try:
        channel = await (await connection.channel()).get_underlay_channel()
        assert isinstance(channel, Channel)
        return await work(channel)
    finally:
        await connection.close()


@contextmanager
def fresh_shop() -> Iterator[Shop]:
    """Skips the test where there is no broker, or no driver of the project's database: a service loads that."""
    need_broker()
    need_driver()
    shop = Shop(url())
    try:
        yield shop
    finally:
        shop.clear()


def need_driver() -> None:
    kind = databases.KINDS[0]
    try:
        check_present(DatabaseSettings(url=SecretStr(NOWHERE[kind])))
    except ConfigurationError as error:
        if is_required(kind):
            raise
        pytest.skip(str(error))
