"""How fast the relay is, against a client that only publishes: `make bench-relay`.

Rows wait in Postgres; one process relays them to RabbitMQ, as `drain` does, and each is confirmed and stamped. The
other side publishes the same bodies with the same properties over aio-pika, confirms pipelined, and reads no database
at all. The two alternate, and so does which of them begins.

    figure: ratio        the median of the relay's messages per second divided by the median of the client's

0.8 is the least it may be. The second figure gives every event one of a thousand ordering keys.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import aio_pika
from full_tables import PENDING, MailroomBase, Settings, fill, fresh, settle
from services import BROKER, Happened, publish, take_turns

from mailroom import Mailroom

BODY = b'{"number": 1}'
"""What `fill` puts into a row."""


@asynccontextmanager
async def exchange_with_a_queue(url: str) -> AsyncIterator[tuple[str, Callable[[int], Awaitable[None]]]]:
    """An exchange with a quorum queue that takes everything, and how to empty that of so many messages."""
    name = f"bench-{uuid4().hex[:12]}"
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        await queue.bind(exchange, "#")

        async def empty(expected: int) -> None:
            held = (await channel.declare_queue(name, passive=True)).declaration_result.message_count
            assert held == expected, f"the queue holds {held} messages instead of {expected}"
            await queue.purge()

        try:
            yield name, empty
        finally:
            await channel.queue_delete(name)
            await channel.exchange_delete(name)


async def relay(mailroom: Mailroom, count: int, keys: int) -> float:
    """So many rows out of the outbox. Returns how many seconds that took."""
    await fill(mailroom.database, count, processed=PENDING, keys=keys)
    await settle(mailroom.database)
    await mailroom.transport.start()
    began = time.perf_counter()
    relayed = await mailroom.processor.drain()
    took = time.perf_counter() - began
    await mailroom.transport.stop()
    assert relayed == count, f"{relayed} of {count} rows were relayed"
    return took


async def compare(database: str, broker: str, *, count: int, rounds: int, keys: int) -> float:
    """The median of the relay's messages per second divided by the client's."""
    async with exchange_with_a_queue(broker) as (exchange, empty):
        settings = Settings(
            database={"url": database, "statement_timeout_seconds": 0},
            message_bus={"provider": "rabbitmq", "endpoint_prefix": exchange},
            rabbitmq={"url": broker, "exchange": exchange, "declare_topology": False},
        )
        mailroom = Mailroom(settings, events=[Happened])
        async with mailroom.database.engine.begin() as connection:
            await connection.run_sync(MailroomBase.metadata.create_all)

        async def client() -> float:
            took = await publish(broker, exchange, [BODY] * count)
            await empty(count)
            return took

        async def ours() -> float:
            took = await relay(mailroom, count, keys)
            await empty(count)
            return took

        seconds = await take_turns({"client": client, "relay": ours}, rounds)
        await mailroom.close()
    print(*(f"  {side} {count / taken:,.0f}/s" for side, taken in seconds.items()), flush=True)
    return seconds["client"] / seconds["relay"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000, help="in each round (10,000)")
    parser.add_argument("--rounds", type=int, default=5, help="of each side (5)")
    parser.add_argument("--broker", default=BROKER, help=f"the RabbitMQ to publish to ({BROKER})")
    arguments = parser.parse_args()
    figures = []
    for name, keys in (("without ordering keys", 0), ("1,000 ordering keys", 1_000)):
        print(f"{name} …", flush=True)
        with fresh("postgres") as url:
            work = compare(url, arguments.broker, count=arguments.messages, rounds=arguments.rounds, keys=keys)
            figures.append(f"relay to rabbitmq / aio-pika, {name}: {asyncio.run(work):.2f}")
    print(*figures, sep="\n")


if __name__ == "__main__":
    main()
