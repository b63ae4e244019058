"""A queue of the test's own on RabbitMQ: what arrived there, and in which order, read past the framework."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel
from arrivals import Arrival, arrival

T = TypeVar("T")

WINDOW = 500


@dataclass(frozen=True)
class Tap:
    """Takes every event of an exchange from the moment on at which it is opened. Outlives restarts and crashes."""

    url: str
    exchange: str
    queue: str = "tap"

    def open(self) -> None:
        async def declare(channel: AbstractChannel) -> None:
            exchange = await channel.get_exchange(self.exchange)
            queue = await channel.declare_queue(self.queue, durable=True, arguments={"x-queue-type": "quorum"})
            await queue.bind(exchange, "#")

        self._on_channel(declare)

    def count(self, queue: str) -> int:
        """How many messages wait in any queue of this broker."""

        async def ask(channel: AbstractChannel) -> int:
            declared = await channel.declare_queue(queue, passive=True)
            return declared.declaration_result.message_count or 0

        return self._on_channel(ask)

    def drain(self) -> list[Arrival]:
        """All that arrived, the oldest first."""
        count = self.count(self.queue)

        async def take(channel: AbstractChannel) -> list[Arrival]:
            await channel.set_qos(prefetch_count=WINDOW)
            queue = await channel.get_queue(self.queue, ensure=False)
            found: list[Arrival] = []
            if not count:
                return found
            async with queue.iterator() as messages:
                async for message in messages:
                    found.append(arrival(message.message_id, message.body))
                    await message.ack()
                    if len(found) == count:
                        break
            return found

        return self._on_channel(take)

    def _on_channel(self, work: Callable[[AbstractChannel], Awaitable[T]]) -> T:
        async def connected() -> T:
            async with await aio_pika.connect(self.url) as connection:
                return await work(await connection.channel())

        return asyncio.run(connected())
