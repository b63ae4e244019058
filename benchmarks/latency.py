"""How long it takes from a commit until the handler is entered, while nothing else happens: `make bench-latency`.

A service runs, relay and consumer, and is idle. An event is committed in it; once its handler was entered, and after a
pause of random length, the next one is: so that no poll falls into step with them. Three ways are timed: over Postgres
and RabbitMQ, with SQLite and the outbox in one process, and over Postgres and RabbitMQ where the service is another
process than the one that commits.

    figure: ratio        milliseconds divided by the most that they may be: 10 for half of all, 50 for 99 of 100
"""

import argparse
import asyncio
import multiprocessing
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from multiprocessing.connection import Connection
from typing import Any
from uuid import UUID

from full_tables import Settings, fresh
from services import BROKER, Happened, Service, names, settings

from mailroom import Context, Handlers, Mailroom

WARM_UP = 20
PAUSES = 0.02, 0.12
"""The shortest and the longest, in seconds."""
PATIENCE_SECONDS = 30.0
P50_MS, P99_MS = 10, 50

Entered = Callable[[UUID], Awaitable[float]]
"""Waits for an event's handler, and says when it was entered."""
Run = Callable[[Settings], AbstractAsyncContextManager[tuple[Mailroom, Entered]]]


def service(given: Settings, entered: Callable[[UUID, float], None]) -> Service:
    """Tells `entered` which message is handled, and since when."""
    handlers = Handlers()

    @handlers.on(Happened)
    async def handle(event: Happened, _context: Context) -> None:
        entered(event.message_id, time.perf_counter())

    return Service(given, handlers=[handlers])


@asynccontextmanager
async def here(given: Settings) -> AsyncIterator[tuple[Mailroom, Entered]]:
    """The service runs in this process."""
    entries: asyncio.Queue[tuple[UUID, float]] = asyncio.Queue()
    async with service(given, lambda *entry: entries.put_nowait(entry)).running() as mailroom:
        yield mailroom, lambda message_id: _the_one(entries, message_id)


@asynccontextmanager
async def elsewhere(given: Settings) -> AsyncIterator[tuple[Mailroom, Entered]]:
    """The service runs in another process; perf_counter is the same clock there, on Linux."""
    entries: asyncio.Queue[tuple[UUID, float]] = asyncio.Queue()
    is_up = asyncio.Event()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(given.model_dump(), theirs))
    process.start()
    theirs.close()

    def read() -> None:
        entry = ours.recv()
        if entry is None:
            is_up.set()
        else:
            entries.put_nowait(entry)

    loop = asyncio.get_running_loop()
    loop.add_reader(ours.fileno(), read)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await is_up.wait()
        mailroom = Service(given)  # composed to commit, and not run
        yield mailroom, lambda message_id: _the_one(entries, message_id)
        await mailroom.close()
    finally:
        loop.remove_reader(ours.fileno())
        ours.close()
        await asyncio.to_thread(process.join)


def _serve(given: dict[str, Any], pipe: Connection) -> None:
    """The other process: runs until the pipe is closed."""

    async def run() -> None:
        async with service(Settings(**given), lambda *entry: pipe.send(entry)).running():
            pipe.send(None)
            await asyncio.to_thread(pipe.poll, None)

    asyncio.run(run())


async def _the_one(entries: "asyncio.Queue[tuple[UUID, float]]", message_id: UUID) -> float:
    async with asyncio.timeout(PATIENCE_SECONDS):
        entered, at = await entries.get()
    assert entered == message_id
    return at


async def measure(mailroom: Mailroom, entered: Entered, samples: int) -> list[float]:
    """Milliseconds from the end of each commit to the handler; below 0 if it came first."""
    times = []
    for number in range(WARM_UP + samples):
        event = Happened(number=number)
        async with mailroom.transaction() as session:
            mailroom.publish(session, event)
        committed = time.perf_counter()
        times.append((await entered(event.message_id) - committed) * 1000)
        await asyncio.sleep(random.uniform(*PAUSES))
    return times[WARM_UP:]


async def over_rabbitmq(url: str, broker: str, samples: int, run: Run) -> list[float]:
    async with names(broker) as prefix, run(settings(url, broker, prefix)) as (mailroom, entered):
        return await measure(mailroom, entered, samples)


async def in_process(url: str, samples: int) -> list[float]:
    given = Settings(database={"url": url}, message_bus={"enable_outbox": True})
    async with here(given) as (mailroom, entered):
        return await measure(mailroom, entered, samples)


def figures_of(name: str, times: list[float]) -> list[str]:
    median, late = statistics.median(times), statistics.quantiles(times, n=100, method="inclusive")[98]
    print(f"    p50 {median:.1f} ms, p99 {late:.1f} ms, longest {max(times):.1f} ms", flush=True)
    return [
        f"latency {name}, p50 / {P50_MS} ms: {median / P50_MS:.2f}",
        f"latency {name}, p99 / {P99_MS} ms: {late / P99_MS:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=500, help="events to time each way (500)")
    parser.add_argument("--broker", default=BROKER, help=f"the RabbitMQ between ({BROKER})")
    arguments = parser.parse_args()
    broker, samples = arguments.broker, arguments.samples
    ways = [
        ("on postgres and rabbitmq", "postgres", lambda url: over_rabbitmq(url, broker, samples, here)),
        ("on sqlite in one process", "sqlite", lambda url: in_process(url, samples)),
        ("from another process", "postgres", lambda url: over_rabbitmq(url, broker, samples, elsewhere)),
    ]
    figures = []
    for name, kind, way in ways:
        print(f"{name} …", flush=True)
        with fresh(kind) as url:
            figures += figures_of(name, asyncio.run(way(url)))
    print(*figures, sep="\n")


if __name__ == "__main__":
    main()
