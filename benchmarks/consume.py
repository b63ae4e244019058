"""How fast messages are consumed, against a client that does one transaction for each: `make bench-consume`.

The queue is filled, then emptied: by a service whose inbox is on, by one whose inbox is off, and by a consumer that is
nothing but aio-pika and SQLAlchemy. All handle as many messages at once, are handed as many ahead, have the same pool,
insert the same row in a transaction for each message, and acknowledge it after the commit. They take turns on one
queue and one database; timed is from the first message that is begun to the last one.

    figure: ratio        the median of the service's messages per second divided by the median of the bare consumer's

0.7 is the least it may be with the inbox on.
"""

import argparse
import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from full_tables import KINDS, Database, fresh, opened
from services import BROKER, Happened, Service, names, publish, settings, take_turns
from sqlalchemy import delete, func, select
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from mailroom import Context, Handlers, Settings
from mailroom.persistence.database import create_engine


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int]


class Round:
    """Counts messages as they are begun."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._began = self._ended = 0.0
        self._is_over = asyncio.Event()

    def note(self) -> None:
        self._ended = time.perf_counter()
        self._began = self._began or self._ended
        self._left -= 1
        if not self._left:
            self._is_over.set()

    async def seconds(self) -> float:
        await self._is_over.wait()
        return self._ended - self._began


async def bare(given: Settings, count: int) -> float:
    """What one would write without a framework, and without being able to tell a duplicate."""
    round_, slots = Round(count), asyncio.Semaphore(given.message_bus.concurrency)
    engine = create_engine(given.database)
    sessions = async_sessionmaker(engine, expire_on_commit=False)

    async def handle(message: AbstractIncomingMessage) -> None:
        async with slots:
            round_.note()
            async with sessions.begin() as session:
                session.add(Effect(number=json.loads(message.body)["number"]))
            await message.ack()

    async with await aio_pika.connect(given.rabbitmq.url.get_secret_value()) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=given.message_bus.prefetch)
        queue = await channel.get_queue(f"{given.message_bus.endpoint_prefix}.events", ensure=False)
        await queue.consume(handle)
        took = await round_.seconds()
        for _ in range(given.message_bus.concurrency):  # until the last ones have been acknowledged
            await slots.acquire()
    await engine.dispose()
    return took


async def framework(given: Settings, count: int) -> float:
    round_, handlers = Round(count), Handlers()

    @handlers.on(Happened)
    async def handle(event: Happened, context: Context) -> None:
        round_.note()
        context.session.add(Effect(number=event.number))

    service = Service(given, handlers=[handlers])
    async with service.running():
        return await round_.seconds()  # the stop finishes the last ones


CONSUMERS: dict[str, Callable[[Settings, int], Awaitable[float]]] = {
    "bare": bare,
    "with the inbox on": framework,
    "with the inbox off": framework,
}


async def compare(database: str, broker: str, *, count: int, rounds: int) -> dict[str, float]:
    """The median of each service's messages per second divided by the bare consumer's."""
    async with names(broker) as prefix, opened(database) as opened_database:
        given = {
            name: settings(database, broker, prefix, enable_inbox=name != "with the inbox off") for name in CONSUMERS
        }
        async with opened_database.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        await declare(given["bare"])

        async def consume(name: str) -> float:
            await publish(broker, prefix, [json.dumps({"number": n}).encode() for n in range(count)])
            took = await CONSUMERS[name](given[name], count)
            await check(opened_database, count)
            return took

        seconds = await take_turns({name: partial(consume, name) for name in CONSUMERS}, rounds)
    print(*(f"    {name}: {count / taken:,.0f} messages per second" for name, taken in seconds.items()), sep="\n")
    return {name: seconds["bare"] / taken for name, taken in seconds.items() if name != "bare"}


async def declare(given: Settings) -> None:
    """The service's queue, bound to what it handles."""
    handlers = Handlers()

    @handlers.on(Happened)
    async def handle(_event: Happened, _context: Context) -> None:
        return

    service = Service(given, handlers=[handlers])
    await service.ensure_connected()
    await service.close()


async def check(database: Database, count: int) -> None:
    """Every message of the round left one row; the next one starts without them."""
    async with database.connection() as connection:
        found = (await connection.execute(select(func.count()).select_from(Effect))).scalar_one()
        await connection.execute(delete(Effect))
    assert found == count, f"{count} messages left {found} rows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2_000, help="in each round (2,000)")
    parser.add_argument("--rounds", type=int, default=5, help="of each consumer (5)")
    parser.add_argument("--broker", default=BROKER, help=f"the RabbitMQ to consume from ({BROKER})")
    parser.add_argument("--database", choices=KINDS, action="append", help="only this one (postgres)")
    arguments = parser.parse_args()
    logging.getLogger("mailroom").setLevel(logging.ERROR)  # it warns of an inbox that is off, at each start
    figures = []
    for kind in arguments.database or ["postgres"]:
        print(f"{kind}: {arguments.messages:,} messages …", flush=True)
        with fresh(kind) as url:
            ratios = asyncio.run(compare(url, arguments.broker, count=arguments.messages, rounds=arguments.rounds))
        figures += [f"consume on {kind} {name} / bare: {ratio:.2f}" for name, ratio in ratios.items()]
    print(*figures, sep="\n")


if __name__ == "__main__":
    main()
