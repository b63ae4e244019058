"""How fast others relay an outbox in PostgreSQL to RabbitMQ, on this machine: `make bench-peers`.

Each relays the rows that wait, with confirms, in one process, and is divided by the same client that only publishes as
in `make bench-relay`. Peer and client take turns.

    figure: ratio        the median of the relay's messages per second divided by the median of the client's

The packages come from requirements.txt beside this file. None of them belongs to the project.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import aio_pika
import asyncpg
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange
from faststream_outbox import OutboxBroker, make_outbox_table
from full_tables import fresh
from relay import BODY, compare, exchange_with_a_queue
from services import BROKER, Happened, publish, take_turns
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine
from txoutbox import OutboxMessage, Relay, RelayConfig
from txoutbox.adapters.postgres import PostgresStorage

Peer = Callable[[str, str, str, int], Awaitable[float]]
"""Takes the URLs of database and broker, the exchange and a count of rows; returns seconds."""

TUNED = RelayConfig(batch_size=1000, concurrency=200, lease=timedelta(minutes=5))


def txoutbox(config: RelayConfig) -> Peer:
    async def relay(database: str, broker: str, exchange: str, count: int) -> float:
        plain = database.replace("+asyncpg", "")
        async with asyncpg.create_pool(plain) as pool, await aio_pika.connect(broker) as link:
            await pool.execute("DROP TABLE IF EXISTS outbox")
            storage = PostgresStorage(pool)
            await storage.create_schema()
            async with pool.acquire() as connection, connection.transaction():
                for _ in range(count):
                    await storage.insert(connection, Happened.event_name, BODY)
            to = await (await link.channel(publisher_confirms=True)).get_exchange(exchange, ensure=False)

            async def send(message: OutboxMessage) -> None:
                body = aio_pika.Message(
                    message.payload,
                    content_type="application/json",
                    delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
                    message_id=str(message.id),
                )
                await to.publish(body, message.topic)

            peer, began = Relay(storage, send, config=config), time.perf_counter()
            while (await peer.run_once()).claimed:
                pass
            return time.perf_counter() - began

    return relay


async def faststream_outbox(database: str, broker: str, exchange: str, count: int) -> float:
    engine, metadata, left, over = create_async_engine(database, pool_size=60), MetaData(), count, asyncio.Event()
    table = make_outbox_table(metadata, table_name="faststream_outbox")
    source, target = OutboxBroker(engine, outbox_table=table, logger=None), RabbitBroker(broker, logger=None)
    where = RabbitExchange(exchange, type=ExchangeType.TOPIC, durable=True)

    @target.publisher(exchange=where, routing_key=Happened.event_name, persist=True)
    @source.subscriber("relayed", max_workers=50, fetch_batch_size=500, min_fetch_interval=0.01)
    async def relay(body: dict[str, int]) -> dict[str, int]:
        nonlocal left
        left -= 1
        if not left:
            over.set()
        return body

    async with engine.begin() as connection:
        await connection.run_sync(metadata.drop_all)
        await connection.run_sync(metadata.create_all)
        await source.publish_batch(*({"number": 1} for _ in range(count)), queue="relayed", session=connection)
    await target.start()
    began = time.perf_counter()
    await source.start()
    await over.wait()
    took = time.perf_counter() - began
    await source.stop()
    await target.stop()
    await engine.dispose()
    return took


PEERS = {
    "txoutbox as it comes": txoutbox(RelayConfig()),
    "txoutbox tuned": txoutbox(TUNED),
    "faststream-outbox": faststream_outbox,
}


async def rounds_of(peer: Peer, database: str, broker: str, count: int, rounds: int) -> float:
    """The median of its messages per second divided by the client's."""
    async with exchange_with_a_queue(broker) as (exchange, empty):

        async def client() -> float:
            took = await publish(broker, exchange, [BODY] * count)
            await empty(count)
            return took

        async def theirs() -> float:
            took = await peer(database, broker, exchange, count)
            await empty(count)
            return took

        seconds = await take_turns({"client": client, "peer": theirs}, rounds)
    return seconds["client"] / seconds["peer"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000, help="in each round (5,000)")
    parser.add_argument("--rounds", type=int, default=3, help="of each side (3)")
    parser.add_argument("--broker", default=BROKER, help=f"the RabbitMQ to publish to ({BROKER})")
    arguments = parser.parse_args()
    count, rounds = arguments.messages, arguments.rounds
    with fresh("postgres") as url:
        ours = asyncio.run(compare(url, arguments.broker, count=count, rounds=rounds, keys=0))
        print(f"relay to rabbitmq / aio-pika, mailroom: {ours:.2f}")
    for name, peer in PEERS.items():
        with fresh("postgres") as url:
            figure = asyncio.run(rounds_of(peer, url, arguments.broker, count, rounds))
        print(f"relay to rabbitmq / aio-pika, {name}: {figure:.2f}", flush=True)


if __name__ == "__main__":
    main()
