"""A shop on a real RabbitMQ, with an exchange and queues of its own that are gone after the test."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar
from uuid import uuid4

import aio_pika
from aiormq import Channel, spec
from aiormq.abc import DeliveredMessage
from broker_shop import FAILURE, JOURNEY, BrokerShop, Placed, need_driver
from pydantic import SecretStr
from rabbitmq_support import need_broker, url

from mailroom import serialization
from mailroom.messaging.transports.rabbitmq import RabbitMQTransport, wire
from mailroom.messaging.transports.rabbitmq.topology import Topology

T = TypeVar("T")


class Shop(BrokerShop[RabbitMQTransport]):
    """On the broker at `url`."""

    def __init__(self, url: str) -> None:
        name = f"test-{uuid4().hex[:12]}"
        self.url = url
        super().__init__(
            name,
            RabbitMQTransport,
            {
                "message_bus": {"provider": "rabbitmq", "endpoint_prefix": name},
                "rabbitmq": {"url": SecretStr(url), "exchange": name},
            },
        )

    @property
    def topology(self) -> Topology:
        return Topology.of(self.settings(), [Placed.event_name])

    def on_channel(self, work: Callable[[Channel], Awaitable[T]]) -> T:
        """What is done on the broker past mailroom."""
        return asyncio.run(on_channel(self.url, work))

    def give_up(self, *skus: str, into: str = "dead-letters") -> list[str]:
        """Puts an order for each into the dead letters, as the service does. Returns their message ids."""
        messages = [serialization.encode(Placed(sku=sku)) for sku in skus]

        async def work(channel: Channel) -> None:
            for message in messages:
                body = message.payload.encode()
                properties = wire.put_aside(wire.properties_of(message), message.event_type, body, JOURNEY, FAILURE)
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
