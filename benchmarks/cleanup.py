"""What others notice of a purge: `make bench-cleanup`.

One database holds a million rows that may be purged, and some pending ones. A commit with one event, and a claim of
fifty rows, are timed in turn: first alone, then while the cleanup deletes until nothing is left to be deleted.

    figure: ratio        during the purge, divided by alone
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from full_tables import KINDS, LONG_AGO, PENDING, Database, Leases, claim, fill, fresh, opened, settle
from sqlalchemy import func, insert, select

from mailroom.outbox.cleanup import OutboxCleanup
from mailroom.persistence.tables import OutboxMessage
from mailroom.settings import OutboxSettings

WAITING = 1_000


@dataclass
class Times:
    """How many seconds each commit and each claim took."""

    commits: list[float] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)

    async def take(self, database: Database, leases: Leases) -> None:
        self.commits.append(await commit(database))
        self.claims.append(await claim(database, leases))
        await asyncio.sleep(0.005)  # a service that does nothing but commit would be measured against itself


async def commit(database: Database) -> float:
    began = time.perf_counter()
    async with database.connection() as connection:
        now = database.claims.now()
        row = insert(OutboxMessage).values(
            message_id=uuid4(),
            kind="integration",
            event_type="bench.happened",
            event_version=1,
            payload="{}",
            headers="{}",
            occurred_on=now,
            available_on=now,
        )
        await connection.execute(row)
    return time.perf_counter() - began


async def measure(url: str, expired: int, rounds: int) -> tuple[Times, Times, float]:
    """Alone, during the purge, and how many seconds the purge took."""
    alone, during = Times(), Times()
    async with opened(url) as database:
        await fill(database, expired, processed=LONG_AGO)
        await fill(database, WAITING, processed=PENDING)
        await settle(database)
        leases = Leases(database, lease_seconds=60)
        for _ in range(rounds):
            await alone.take(database, leases)
        began = time.perf_counter()
        purge = asyncio.create_task(OutboxCleanup(database, OutboxSettings()).run_once())
        while not purge.done():
            await during.take(database, leases)
        took = time.perf_counter() - began
        assert (await purge).processed == expired
        async with database.connection() as connection:
            left = (await connection.execute(select(func.count()).select_from(OutboxMessage))).scalar_one()
        assert left == WAITING + len(alone.commits) + len(during.commits)
    return alone, during, took


def percentile_99(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=100)[98]


MEASURES: dict[str, Callable[[Sequence[float]], float]] = {
    "median": statistics.median,
    "99th percentile": percentile_99,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--expired", type=int, default=1_000_000, help="rows to be purged (1,000,000)")
    parser.add_argument("--rounds", type=int, default=500, help="commits and claims to time without a purge (500)")
    parser.add_argument("--database", choices=KINDS, action="append", help="only this one")
    arguments = parser.parse_args()
    figures = []
    for kind in arguments.database or KINDS:
        print(f"{kind}: {arguments.expired:,} expired rows …", flush=True)
        with fresh(kind) as url:
            alone, during, took = asyncio.run(measure(url, arguments.expired, arguments.rounds))
        print(f"    purged in {took:.0f} s, beside {len(during.commits):,} commits and claims")
        for what in ("commits", "claims"):
            one, other = getattr(alone, what), getattr(during, what)
            longest = f"{max(one) * 1000:.0f} ms alone, {max(other) * 1000:.0f} ms during the purge"
            print(f"    longest of the {what}: {longest}")
            figures += [
                f"{what} on {kind} during a purge, {name}: {of(other) / of(one):.2f}" for name, of in MEASURES.items()
            ]
    print(*figures, sep="\n")


if __name__ == "__main__":
    main()
