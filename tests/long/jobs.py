"""What the processes of the long tests do. Each job is given `url` and what its test adds, and runs to its end."""

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import deaths
from orders import Order, OrderPlaced, Reservation, Shelf, compose, reserving
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from worker import report

from mailroom import Context, Handlers, Mailroom
from mailroom.envelope import Message
from mailroom.messaging.consumer import Consumer
from mailroom.outbox import cleanup
from mailroom.outbox.leases import Claimed, Leases, Settlement
from mailroom.persistence.engines import engine_kind
from mailroom.settings import Settings

ORDERS_PER_ROUND = 60
Job = dict[str, Any]


class ChangedMyMindError(Exception):
    """Rolls an order back."""


@asynccontextmanager
async def running(mailroom: Mailroom) -> AsyncIterator[None]:
    await mailroom.processor.start()
    try:
        yield
    finally:
        await mailroom.processor.stop()
        await mailroom.close()


async def everything_is_handled(mailroom: Mailroom) -> None:
    while (await mailroom.outbox.stats()).pending:  # noqa: ASYNC110 - what is waited for, other processes do
        await asyncio.sleep(0.02)


# The crash test


async def live_until_killed(job: Job) -> None:
    """Commits orders, takes some back, relays and purges, all at once, and dies at `point` or after `seconds`."""
    cleanup.BATCH_SIZE = 5
    mailroom = compose(job["url"], reserving(), inbox=job["inbox"], sections=job.get("sections"))
    if "point" in job:
        deaths.arm(mailroom, job["point"], job["nth"])
    else:
        signal.setitimer(signal.ITIMER_REAL, job["seconds"])  # nobody listens to SIGALRM, so it kills
    async with running(mailroom):
        async with asyncio.TaskGroup() as group:
            group.create_task(_clean_up_again_and_again(mailroom))
            for _ in range(3):
                group.create_task(_place_orders(mailroom, ORDERS_PER_ROUND // 3))
        await asyncio.Event().wait()


async def _place_orders(mailroom: Mailroom, count: int) -> None:
    for number in range(count):
        order = Order.place(number=number)
        try:
            async with mailroom.transaction() as session:
                session.add(order)
                await session.flush()
                if number % 4 == 3:
                    raise ChangedMyMindError
            report(committed=order.id.hex)
        except ChangedMyMindError:
            report(rolled_back=order.id.hex)


async def _clean_up_again_and_again(mailroom: Mailroom) -> None:
    for _ in range(20):
        await mailroom.cleanup.run_once()
        await asyncio.sleep(0.02)


async def place(job: Job) -> None:
    """Commits orders of these articles in one transaction, and relays nothing."""
    mailroom = compose(job["url"], inbox=True)
    async with mailroom.transaction() as session:
        session.add_all(Order.place(sku) for sku in job["skus"])
    await mailroom.close()


async def relay_what_is_left(job: Job) -> None:
    mailroom = compose(job["url"], reserving(), inbox=job["inbox"], sections=job.get("sections"))
    async with running(mailroom):
        await everything_is_handled(mailroom)


async def relay_poison(job: Job) -> None:
    """Relays what is left; the handler of "poison" takes its process along."""
    handlers = Handlers()

    @handlers.on(OrderPlaced)
    async def reserve(event: OrderPlaced, context: Context[Any]) -> None:
        if event.sku == "poison":
            deaths.die()
        context.session.add(Reservation(order_id=event.order_id, pid=os.getpid()))

    mailroom = compose(job["url"], handlers, inbox=True, sections={"outbox": {"max_attempts": job["max_attempts"]}})
    async with running(mailroom):
        await everything_is_handled(mailroom)


# Many processes at once


async def sell(job: Job) -> None:
    """Commits so many orders one after another; each reads how many were sold before it, and counts itself."""
    mailroom = compose(job["url"], inbox=True)
    await set_up_shelves(mailroom, ["tea"])
    report(ready=True)
    for _ in range(job["count"]):
        async with mailroom.transaction() as session:
            await _sell_one(session, "tea")
    await mailroom.close()


async def set_up_shelves(mailroom: Mailroom, skus: Sequence[str]) -> None:
    """Whoever comes first sets them up; nobody minds that others do so at the same time."""
    statement = text("INSERT INTO shelves (sku, sold) VALUES (:sku, 0) ON CONFLICT DO NOTHING")
    async with mailroom.database.connection() as connection:
        await connection.execute(statement, [{"sku": sku} for sku in sorted(skus)])


async def _sell_one(session: AsyncSession, sku: str, **how: Any) -> None:
    shelf = await session.get_one(Shelf, sku, with_for_update=True)
    shelf.sold += 1
    session.add(Order.place(sku, shelf.sold, **how))


async def sell_whatever_happens(job: Job) -> None:
    """Commits orders until so many commits were confirmed; one that fails may have been made all the same."""
    mailroom = compose(job["url"], inbox=True)
    confirmed = 0
    while confirmed < job["count"]:
        order = Order.place()
        try:
            async with mailroom.transaction() as session:
                session.add(order)
        except (DBAPIError, OSError, *engine_kind(mailroom.database.engine.dialect.name).unreachable):
            await asyncio.sleep(0.02)
            continue
        confirmed += 1
        report(committed=order.id.hex)
    await mailroom.close()


async def relay(job: Job) -> None:
    """Relays until `count` orders are handled and nothing is left."""
    mailroom = compose(
        job["url"], reserving(), inbox=job["inbox"], sections={"outbox": {"batch_size": job["batch_size"]}}
    )
    async with running(mailroom):
        report(ready=True)
        while (await mailroom.outbox.stats()).processed < 2 * job["count"]:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)


async def sell_by_key(job: Job) -> None:
    """Commits so many orders of each article, in a random order, each with its article as ordering key."""
    mailroom = compose(job["url"], inbox=True)
    await set_up_shelves(mailroom, job["skus"])
    report(ready=True)
    turns = [sku for sku in job["skus"] for _ in range(job["count"])]
    random.Random(job["seed"]).shuffle(turns)
    for sku in turns:
        async with mailroom.transaction() as session:
            await _sell_one(session, sku, ordering_key=sku)
    await mailroom.close()


async def relay_by_key(job: Job) -> None:
    """Relays to a broker that fails now and then; notes when it held and when it published what."""
    log = Log(Path(job["log"]))
    log.watch(Leases)
    broker = FailingBroker(log, random.Random(job["seed"]))
    mailroom = compose(
        job["url"],
        inbox=True,
        sections={"message_bus": {"provider": "stand_in"}, "outbox": {"batch_size": 5}},
        transports={"stand_in": broker},
    )
    async with running(mailroom):
        report(ready=True)
        while (await mailroom.outbox.stats()).processed < job["count"]:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.02)


class Log:
    """A file to which several processes append lines, with a clock that they share."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, what: str, key: str, number: int) -> None:
        line = f"{time.clock_gettime_ns(time.CLOCK_MONOTONIC)} {os.getpid()} {what} {key} {number}\n"
        os.write(self._file, line.encode())

    def watch(self, leases: type[Leases]) -> None:
        """Notes a key as held when it surely is: after the claim's commit, until the write-back begins."""
        claim, write_back = leases.claim, leases.write_back

        async def noted_claim(self_: Leases, *args: Any) -> Sequence[Claimed]:
            rows = await claim(self_, *args)
            for row in rows:
                self.write("hold", str(row.ordering_key), row.id)
            return rows

        async def noted_write_back(self_: Leases, settlements: Sequence[Settlement]) -> int:
            for settlement in settlements:
                self.write("give", str(settlement.claimed.ordering_key), settlement.claimed.id)
            return await write_back(self_, settlements)

        leases.claim, leases.write_back = noted_claim, noted_write_back  # type: ignore[method-assign,assignment]


class FailingBroker:
    """A stand-in for a broker that loses every third message, while it is in flight."""

    name = "stand_in"

    def __init__(self, log: Log, chance: random.Random) -> None:
        self._log = log
        self._chance = chance

    def __call__(self, settings: Settings, consumer: Consumer) -> "FailingBroker":
        return self

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def publish(self, message: Message, attempt: int) -> None:
        number = OrderPlaced.model_validate_json(message.payload).number
        key = str(message.ordering_key)
        self._log.write("send", key, number)
        await asyncio.sleep(self._chance.uniform(0, 0.003))
        if self._chance.random() < 1 / 3:
            self._log.write("fail", key, number)
            raise ConnectionResetError("the broker is having a bad day")
        self._log.write("sent", key, number)


# A purge beside everybody


async def purge(job: Job) -> None:
    """Purges what has expired, once."""
    mailroom = compose(job["url"], inbox=True)
    report(purged=asdict(await mailroom.cleanup.run_once()))
    await mailroom.close()


async def sell_until_told(job: Job) -> None:
    """Commits orders until SIGTERM, at a pace that relays can keep up with."""
    mailroom, told = compose(job["url"], inbox=True), _sigterm()
    sold = 0
    while not told.is_set():
        async with mailroom.transaction() as session:
            session.add(Order.place())
        sold += 1
        if sold == 1:
            report(ready=True)
        await asyncio.sleep(0.1)
    report(sold=sold)
    await mailroom.close()


async def relay_until_told(job: Job) -> None:
    """Relays until SIGTERM, and then until nothing is left."""
    few = {"message_bus": {"concurrency": 4}}  # so that four relays leave connections to others
    mailroom, told = compose(job["url"], reserving(), inbox=True, sections=few), _sigterm()
    async with running(mailroom):
        report(ready=True)
        await told.wait()
        await everything_is_handled(mailroom)


def _sigterm() -> asyncio.Event:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    return told


# Stopping


async def run_service(job: Job) -> None:
    """What `run` of a project does. Handlers take `pause_seconds`, and report that they began."""
    handlers = Handlers()

    @handlers.on(OrderPlaced)
    async def reserve(event: OrderPlaced, context: Context[Any]) -> None:
        report(began=event.order_id.hex)
        await asyncio.sleep(job["pause_seconds"])
        context.session.add(Reservation(order_id=event.order_id, pid=os.getpid()))

    mailroom = compose(
        job["url"],
        handlers,
        inbox=job["inbox"],
        sections={"shutdown_timeout_seconds": job["shutdown_timeout_seconds"]},
    )
    await mailroom.run()
