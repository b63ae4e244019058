"""Services over RabbitMQ for the benchmarks: composed as a user would, their queues removed afterwards."""

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import aio_pika
from full_tables import MailroomBase, Settings

from mailroom import IntegrationEvent, Mailroom

BROKER = "amqp://guest:guest@127.0.0.1:5672/"
IN_FLIGHT = 500
"""How many publishes are under way at once; more make it no faster."""
QUEUES = ("events", "dead-letters", "redelivery.60s", "redelivery.600s", "redelivery.3600s")


class Happened(IntegrationEvent, name="bench.happened"):
    number: int


class Service(Mailroom):
    """Its tables are made where a real one asks whether they were migrated."""

    async def ensure_migrated(self, *_data_sources: str) -> None:
        async with self.database.engine.begin() as connection:
            await connection.run_sync(MailroomBase.metadata.create_all)


def settings(database: str, broker: str, prefix: str, **bus: Any) -> Settings:
    """As they are without a setting, but for names."""
    return Settings(
        database={"url": database},
        message_bus={"provider": "rabbitmq", "endpoint_prefix": prefix, **bus},
        rabbitmq={"url": broker, "exchange": prefix},
    )


@asynccontextmanager
async def names(broker: str) -> AsyncIterator[str]:
    """A prefix for queues that nobody else has, which is also the exchange's name; what was declared is removed."""
    prefix = f"bench-{uuid4().hex[:12]}"
    try:
        yield prefix
    finally:
        async with await aio_pika.connect(broker) as connection:
            channel = await connection.channel()
            for name in QUEUES:
                await channel.queue_delete(f"{prefix}.{name}")
            await channel.exchange_delete(prefix)


async def publish(broker: str, exchange: str, bodies: Sequence[bytes]) -> float:
    """Messages as the relay sends them, over aio-pika, confirmed. Returns how many seconds that took."""
    now = datetime.now(UTC)
    headers: dict[str, Any] = {"mailroom-version": 1, "mailroom-occurred-on": now.isoformat()}
    async with await aio_pika.connect(broker) as connection:
        channel = await connection.channel(publisher_confirms=True)
        to = await channel.get_exchange(exchange, ensure=False)
        waiting = iter(bodies)

        async def one_after_another() -> None:
            for body in waiting:
                message = aio_pika.Message(
                    body,
                    content_type="application/json",
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    message_id=str(uuid4()),
                    type=Happened.event_name,
                    timestamp=now,
                    headers=headers,
                )
                await to.publish(message, Happened.event_name, mandatory=True)

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT):
                group.create_task(one_after_another())
        return time.perf_counter() - began


async def take_turns(sides: Mapping[str, Callable[[], Awaitable[float]]], rounds: int) -> dict[str, float]:
    """The median of the seconds that each side returned. They begin in turns, and the first round does not count."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(1 + rounds):
        for name in sides if number % 2 else reversed(list(sides)):
            took = await sides[name]()
            if number:
                times[name].append(took)
    return {name: statistics.median(taken) for name, taken in times.items()}
