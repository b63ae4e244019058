"""What the processes of the chaos test do: a shop that sells and relays, a warehouse that consumes.

Each lives until SIGTERM, and then stops as a service does. SIGUSR1 arms its `point`, see broker_deaths.py; SIGUSR2
makes it write the stacks of its tasks to standard error.
"""

import asyncio
import logging
import random
import signal
import sys
from typing import Any

import broker_deaths
from jobs import ChangedMyMindError, Job, set_up_shelves
from orders import Order, Shelf, compose, reserving
from sqlalchemy import text
from worker import report

from mailroom import Handlers, Mailroom
from mailroom.log import configure_logging
from mailroom.persistence.tables import PENDING
from mailroom.settings import LoggingSettings

AHEAD = 60
"""How many events may be pending before producers wait, so that everybody is at work until the end."""
REGRETS = 0.05
"""Which share of the orders is taken back."""
KEYED = "keyed"
"""With this an article's name begins if its orders are published in order."""
RECEIPT_EVERY = 4
"""Which reservations raise an event in turn: those of orders whose number this divides."""
HARD_EVERY, FAILURES = 9, 3
"""Which orders cannot be reserved at once, and how often they fail: they are put aside, and come again."""
QUICK = {
    "retry_limit": FAILURES - 1,
    "retry_min_interval_seconds": 0.05,
    "retry_max_interval_seconds": 0.5,
    "redelivery_intervals_seconds": [0.5],
}


async def sell_over_a_broker(job: Job) -> None:
    """Commits orders until each article was sold so many times, over all producers, and then waits for its end."""
    mailroom, told = _composed(job), _listen_to_signals()
    await set_up_shelves(mailroom, job["skus"])
    broker_deaths.arm_by_signal(mailroom, job["provider"], job["point"])
    report(ready=True)
    chance, skus = random.Random(job["seed"]), list(job["skus"])
    while skus and not told.is_set():
        sku = chance.choice(skus)
        try:
            async with mailroom.transaction() as session:
                shelf = await session.get_one(Shelf, sku, with_for_update=True)
                if shelf.sold == job["count"]:
                    skus.remove(sku)
                    continue
                shelf.sold += 1
                session.add(Order.place(sku, shelf.sold, ordering_key=sku if sku.startswith(KEYED) else None))
                await session.flush()
                if chance.random() < REGRETS:
                    raise ChangedMyMindError
        except ChangedMyMindError:
            continue
        if shelf.sold % 5 == 0:
            await _not_too_far_ahead(mailroom)
    await told.wait()
    await mailroom.close()


async def set_up_the_broker(job: Job) -> None:
    """With the queue of who consumes, before anything is published: what nobody takes is dropped."""
    mailroom = _composed(job, reserving())
    await mailroom.ensure_connected()
    await mailroom.close()


async def publish_to_the_broker(job: Job) -> None:
    await _serve(job)


async def consume_from_the_broker(job: Job) -> None:
    """Reserves what was ordered, and handles the events which that raises in turn."""
    await _serve(job, reserving(receipt_every=RECEIPT_EVERY, hard_every=HARD_EVERY, failures=FAILURES))


async def _serve(job: Job, *handlers: Handlers) -> None:
    mailroom, told = _composed(job, *handlers), _listen_to_signals()
    broker_deaths.arm_by_signal(mailroom, job["provider"], job["point"])
    report(ready=True)
    async with mailroom.running():
        await told.wait()


async def _not_too_far_ahead(mailroom: Mailroom) -> None:
    while True:
        async with mailroom.reader() as session:
            if await session.scalar(text(f"SELECT count(*) FROM outbox_messages WHERE {PENDING}")) < AHEAD:
                return
        await asyncio.sleep(0.02)


def _composed(job: Job, *handlers: Handlers) -> Mailroom:
    configure_logging(LoggingSettings(level="WARNING"))
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # it tells of each cut, with a stack
    sections: dict[str, Any] = {
        "message_bus": {"provider": job["provider"], "endpoint_prefix": job["service"], **QUICK},
        **job["broker"],
        # What a killed relay held is taken over two seconds later.
        "outbox": {"lease_seconds": 2, "batch_size": 10},
        "handler_timeout_seconds": 1.9,
    }
    return compose(job["url"], *handlers, inbox=True, sections=sections)


def _listen_to_signals() -> asyncio.Event:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, told.set)
    loop.add_signal_handler(signal.SIGUSR2, _write_stacks)
    return told


def _write_stacks() -> None:
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)
    sys.stderr.flush()
