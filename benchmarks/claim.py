"""What a claim costs in a full table, against the same claim in an empty one: `make bench-claim`.

Two databases side by side hold the same pending rows; one of them also holds a million processed rows, or a hundred
thousand more pending ones, or fifty thousand that wait for one another because they have one ordering key. Claims
alternate between the two, so that whatever else the machine does hits both.

    figure: ratio        the median of the full one divided by the median of the other

1.5 is the most it may be, except for the one key: a claim walks past all of its rows.
"""

import argparse
import asyncio
import statistics
from contextlib import AsyncExitStack
from typing import Any

from full_tables import KINDS, NOW, PENDING, Database, Leases, claim, fill, fresh, opened, settle

WAITING = 1_000
"""How many pending rows both tables hold."""
WARM_UP = 20


async def compare(urls: tuple[str, str], rounds: int, more: dict[str, Any], count: int) -> float:
    """The median of claims where so many more rows are, divided by the median of claims where they are not."""
    async with AsyncExitStack() as stack:
        plain, full = [await stack.enter_async_context(opened(url)) for url in urls]
        await fill(full, count, **more)
        for database in (plain, full):
            await fill(database, WAITING, processed=PENDING)
            await settle(database)
        leases = {database: Leases(database, lease_seconds=60) for database in (plain, full)}
        times: dict[Database, list[float]] = {plain: [], full: []}
        for number in range(WARM_UP + rounds):
            for database in (plain, full) if number % 2 else (full, plain):
                took = await claim(database, leases[database])
                if number >= WARM_UP:
                    times[database].append(took)
        return statistics.median(times[full]) / statistics.median(times[plain])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processed", type=int, default=1_000_000, help="rows that were processed (1,000,000)")
    parser.add_argument("--pending", type=int, default=100_000, help="further rows that are pending (100,000)")
    parser.add_argument("--one-key", type=int, default=50_000, help="pending rows of a single ordering key (50,000)")
    parser.add_argument("--rounds", type=int, default=200, help="claims to time in each database (200)")
    parser.add_argument("--database", choices=KINDS, action="append", help="only this one")
    arguments = parser.parse_args()
    experiments = [
        (f"{arguments.processed:,} processed rows", {"processed": NOW}, arguments.processed),
        (f"{arguments.pending:,} pending rows", {"processed": PENDING}, arguments.pending),
        (f"{arguments.pending:,} pending rows of 1,000 keys", {"processed": PENDING, "keys": 1_000}, arguments.pending),
        (f"{arguments.one_key:,} pending rows of one key", {"processed": PENDING, "keys": 1}, arguments.one_key),
    ]
    figures = []
    for kind in arguments.database or KINDS:
        for name, more, count in experiments:
            print(f"{kind}: {name} …", flush=True)
            with fresh(kind) as plain, fresh(kind) as full:
                ratio = asyncio.run(compare((plain, full), arguments.rounds, more, count))
            figures.append(f"claim on {kind}, {name}: {ratio:.2f}")
    print(*figures, sep="\n")


if __name__ == "__main__":
    main()
