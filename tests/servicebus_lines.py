"""A queue of the double with a sender and a receiver of the real client on it. Opening them takes half a second."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from servicebus.double import Double

WAIT_SECONDS = 10


class Line:
    """Both ends of one queue, and the client that they are of."""

    def __init__(self, double: Double, name: str, client: ServiceBusClient) -> None:
        self.double = double
        self.name = name
        self.client = client
        self.sender: ServiceBusSender = client.get_queue_sender(name)
        self.receiver: ServiceBusReceiver = client.get_queue_receiver(name)

    async def send(self, *bodies: str, **fields: Any) -> None:
        await self.sender.send_messages([ServiceBusMessage(body, **fields) for body in bodies])

    async def receive(self, count: int = 1) -> list[ServiceBusReceivedMessage]:
        """Waits for so many, one after the other."""
        found: list[ServiceBusReceivedMessage] = []
        async with asyncio.timeout(WAIT_SECONDS):
            while len(found) < count:
                found += await self.receiver.receive_messages(count - len(found), max_wait_time=WAIT_SECONDS)
        return found

    async def receive_one(self) -> ServiceBusReceivedMessage:
        (one,) = await self.receive()
        return one

    def held(self) -> dict[str, Any]:
        return self.double.held(self.name)


def client_of(double: Double) -> ServiceBusClient:
    """Quick to try again."""
    return ServiceBusClient.from_connection_string(double.connection_string, retry_backoff_factor=0.05)


@asynccontextmanager
async def line(double: Double, name: str, **properties: Any) -> AsyncIterator[Line]:
    """Makes the queue, and opens both ends at the same time."""
    async with double.administration() as administration:
        await administration.create_queue(name, **properties)
    async with opened(double, name) as made:
        yield made


@asynccontextmanager
async def opened(double: Double, name: str) -> AsyncIterator[Line]:
    """The queue is there already."""
    async with client_of(double) as client:
        made = Line(double, name, client)
        await asyncio.gather(made.sender.__aenter__(), made.receiver.__aenter__())
        yield made
        await asyncio.gather(made.sender.close(), made.receiver.close())


async def until(is_so: Callable[[], bool]) -> None:
    """What comes with time; the bound is the test's own."""
    async with asyncio.timeout(WAIT_SECONDS):
        # It asks another process: there is no event to wait for.
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def bodies(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message) for message in messages]
