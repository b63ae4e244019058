"""A shop on Azure Service Bus, with a topic and queues of its own that are gone after the test."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TypeVar

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.management import CorrelationRuleFilter
from broker_shop import FAILURE, JOURNEY, BrokerShop, Placed, need_driver
from service_bus_support import Bus, need_service_bus

from mailroom import serialization
from mailroom.messaging.transports.azure_service_bus import ServiceBusTransport, wire
from mailroom.messaging.transports.azure_service_bus.topology import Topology

T = TypeVar("T")

BODY_LIMIT = 1_000_000


class Shop(BrokerShop[ServiceBusTransport]):
    """On a namespace."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        super().__init__(bus.prefix, ServiceBusTransport, bus.settings())

    @property
    def topology(self) -> Topology:
        return Topology.of(self.settings(), [Placed.event_name])

    def on_administration(self, work: Callable[[ServiceBusAdministrationClient], Awaitable[T]]) -> T:
        """What is done in the namespace past mailroom."""

        async def run() -> T:
            async with self.bus.administration() as administration:
                return await work(administration)

        return asyncio.run(run())

    def rules(self) -> dict[str, str | None]:
        """The label that each rule of the subscription asks for, by its name; None for another kind of rule."""

        async def work(administration: ServiceBusAdministrationClient) -> dict[str, str | None]:
            return {
                rule.name: rule.filter.label if isinstance(rule.filter, CorrelationRuleFilter) else None
                async for rule in administration.list_rules(self.bus.topic, self.name)
            }

        return self.on_administration(work)

    def add_rule(self, name: str, label: str) -> None:
        async def work(administration: ServiceBusAdministrationClient) -> None:
            await administration.create_rule(self.bus.topic, self.name, name, filter=CorrelationRuleFilter(label=label))

        self.on_administration(work)

    def announce(self, *events: str) -> None:
        """Publishes an event of each name to the topic, past mailroom."""

        async def run() -> None:
            async with self.bus.client() as client, client.get_topic_sender(self.bus.topic) as sender:
                await sender.send_messages([ServiceBusMessage(b"{}", subject=event) for event in events])

        asyncio.run(run())

    def wait_for(self, count: int) -> None:
        """What the service passes on comes when it comes; the test's own timeout is the bound."""
        while self.counts()[0] < count:
            pass

    def counts(self) -> tuple[int, int]:
        """How many messages are in the queue, and how many in its dead letters."""

        async def work(administration: ServiceBusAdministrationClient) -> tuple[int, int]:
            found = await administration.get_queue_runtime_properties(self.bus.queue)
            return found.active_message_count or 0, found.dead_letter_message_count or 0

        return self.on_administration(work)

    def give_up(self, *skus: str) -> list[str]:
        """Puts an order for each into the dead letters, as the service does. Returns their message ids."""
        orders = [serialization.encode(Placed(sku=sku)) for sku in skus]
        asyncio.run(self.dead_letter(*(wire.outgoing(order, limit=BODY_LIMIT) for order in orders)))
        return [str(order.message_id) for order in orders]

    async def dead_letter(self, *messages: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
        async with self.bus.client() as client:
            sender, receiver = client.get_queue_sender(self.bus.queue), client.get_queue_receiver(self.bus.queue)
            await asyncio.gather(sender.create_message_batch(), receiver.peek_messages(1))  # opens both
            async with sender, receiver:
                await sender.send_messages(list(messages))
                left = len(messages)
                while left:
                    for message in await receiver.receive_messages(left, max_wait_time=10):
                        left -= 1
                        await receiver.dead_letter_message(
                            message, reason=FAILURE.reason, error_description=wire.description(JOURNEY, FAILURE)
                        )


@contextmanager
def fresh_shop(*, topic: str | None = None) -> Iterator[Shop]:
    """Skips the test where there is no namespace, or no driver of the project's database: a service loads that."""
    need_service_bus()
    need_driver()
    bus = Bus()
    bus.topic = topic or bus.topic
    shop = Shop(bus)
    try:
        yield shop
    finally:
        asyncio.run(shop.bus.clean())


async def keep_nothing_alive(client: object) -> None:
    """Instead of what keeps a connection alive, in the client: it looks once a second whether that was closed, and each
    close waits for it. No connection here is idle for so long as to need it."""


KEPT_ALIVE = "azure.servicebus._pyamqp.aio._client_async.AMQPClientAsync._keep_alive_async"


@contextmanager
def management_that_refuses() -> Iterator[str]:
    """The URL of one that lets nobody manage anything."""

    class Refuse(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = b"<Error><Code>401</Code><Detail>Manage claim is required for this operation.</Detail></Error>"
            self.send_response(401)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
