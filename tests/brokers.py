"""The RabbitMQ that is here, under names of one test's own: they are deleted afterwards.

It is the one that TEST_RABBITMQ_URL names, else the one that the compose.yaml of a project runs.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TypeVar
from uuid import uuid4

import aio_pika
from aio_pika.abc import AbstractChannel

T = TypeVar("T")

HERE = "amqp://guest:guest@127.0.0.1:5672/"
CONNECT_SECONDS = 5
INTERVALS_SECONDS = (60, 600, 3600)


class OwnNames:
    """An exchange, and the queues of any number of services on it."""

    def __init__(self) -> None:
        self.url = os.environ.get("TEST_RABBITMQ_URL") or HERE
        self.name = f"test-{uuid4().hex[:12]}"
        self.exchange = f"{self.name}.events"
        self._services: list[str] = []

    def variables(self, service: str = "shop") -> dict[str, str]:
        """What makes a service use them."""
        prefix = f"{self.name}.{service}"
        self._services.append(prefix)
        return {
            "RABBITMQ__URL": self.url,
            "RABBITMQ__EXCHANGE": self.exchange,
            "MESSAGE_BUS__ENDPOINT_PREFIX": prefix,
        }

    def count(self, service: str, queue: str) -> int:
        """How many messages are in a queue of a service."""

        async def ask(channel: AbstractChannel) -> int:
            found = await channel.declare_queue(f"{self.name}.{service}.{queue}", passive=True)
            return found.declaration_result.message_count or 0

        return asyncio.run(_on_a_channel(self.url, ask))

    def delete(self) -> None:
        async def drop(channel: AbstractChannel) -> None:
            for prefix in self._services:
                for queue in ("events", "dead-letters", *(f"redelivery.{seconds}s" for seconds in INTERVALS_SECONDS)):
                    await channel.queue_delete(f"{prefix}.{queue}")
            await channel.exchange_delete(self.exchange)

        asyncio.run(_on_a_channel(self.url, drop))


@cache
def problem() -> str | None:
    """Why there can be no test on a broker, and what to do; None if there can. It is asked once."""

    async def connect(_channel: AbstractChannel) -> None:
        return None

    try:
        asyncio.run(_on_a_channel(OwnNames().url, connect))
    except Exception as error:
        return f"no rabbitmq: start the broker, or let TEST_RABBITMQ_URL name one ({type(error).__name__}: {error})"
    return None


async def _on_a_channel(url: str, work: Callable[[AbstractChannel], Awaitable[T]]) -> T:
    connection = await aio_pika.connect(url, timeout=CONNECT_SECONDS)
    try:
        return await work(await connection.channel())
    finally:
        await connection.close()
