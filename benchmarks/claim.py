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
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "{{cookiecutter.project_slug}}" / "src"))

from sqlalchemy import update  # noqa: E402

from mailroom import Settings  # noqa: E402
from mailroom.events import Kind  # noqa: E402
from mailroom.outbox.leases import Leases  # noqa: E402
from mailroom.persistence.database import Database  # noqa: E402
from mailroom.persistence.tables import MailroomBase, OutboxMessage  # noqa: E402
from mailroom.testing import databases  # noqa: E402

BATCH = 50
PENDING = 1_000
WARM_UP = 20

ROWS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
    "INSERT INTO outbox_messages ({columns}) SELECT lower(hex(randomblob(16))), {values} FROM n",
    "postgres": "INSERT INTO outbox_messages ({columns}) SELECT gen_random_uuid(), {values} "
    "FROM generate_series(1, {count}) AS n(i)",
}
COLUMNS = (
    "message_id, kind, event_type, event_version, payload, headers, occurred_on, available_on, attempts, ordering_key, "
    "processed_on"
)
NOW = {"sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now')", "postgres": "statement_timestamp()"}


async def fill(database: Database, count: int, *, processed: bool, keys: int = 0) -> None:
    """Adds so many rows, as fast as the database can; with ordering keys that take turns, if there are any."""
    now = NOW[database.kind]
    key = f"'key ' || (i % {keys})" if keys else "NULL"
    values = f"""'integration', 'bench.happened', 1, '{{"number": 1}}', '{{}}', {now}, {now}, 0, {key}, """
    values += now if processed else "NULL"
    statement = ROWS[database.kind].format(columns=COLUMNS, values=values, count=count)
    async with database.connection() as connection:
        await connection.exec_driver_sql(statement)


async def settle(database: Database) -> None:
    """Lets the database know what it holds, as it would after a while."""
    async with database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.exec_driver_sql("ANALYZE" if database.kind == "sqlite" else "VACUUM ANALYZE")


async def claim(database: Database, leases: Leases) -> float:
    """How many seconds one claim of a batch takes. The rows are given back afterwards, untimed."""
    began = time.perf_counter()
    rows = await leases.claim(Kind.INTEGRATION, BATCH)
    took = time.perf_counter() - began
    assert len(rows) == BATCH
    async with database.connection() as connection:
        held = OutboxMessage.id.in_([row.id for row in rows])
        await connection.execute(update(OutboxMessage).where(held).values(lock_token=None, locked_until=None))
    return took


@contextmanager
def fresh(kind: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder, databases.fresh(kind, Path(folder)) as url:
        yield url


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = Database(Settings(database={"url": url, "statement_timeout_seconds": 0}).database)
    async with database.engine.begin() as connection:
        await connection.run_sync(MailroomBase.metadata.create_all)
    try:
        yield database
    finally:
        await database.dispose()


async def compare(urls: tuple[str, str], rounds: int, more: dict[str, Any], count: int) -> float:
    """The median of claims where so many more rows are, divided by the median of claims where they are not."""
    async with AsyncExitStack() as stack:
        plain, full = [await stack.enter_async_context(opened(url)) for url in urls]
        await fill(full, count, **more)
        for database in (plain, full):
            await fill(database, PENDING, processed=False)
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
    parser.add_argument("--database", choices=sorted(ROWS), action="append", help="only this one")
    arguments = parser.parse_args()
    experiments = [
        (f"{arguments.processed:,} processed rows", {"processed": True}, arguments.processed),
        (f"{arguments.pending:,} pending rows", {"processed": False}, arguments.pending),
        (f"{arguments.pending:,} pending rows of 1,000 keys", {"processed": False, "keys": 1_000}, arguments.pending),
        (f"{arguments.one_key:,} pending rows of one key", {"processed": False, "keys": 1}, arguments.one_key),
    ]
    figures = []
    for kind in arguments.database or sorted(ROWS):
        for name, more, count in experiments:
            print(f"{kind}: {name} …", flush=True)
            with fresh(kind) as plain, fresh(kind) as full:
                ratio = asyncio.run(compare((plain, full), arguments.rounds, more, count))
            figures.append(f"claim on {kind}, {name}: {ratio:.2f}")
    print(*figures, sep="\n")


if __name__ == "__main__":
    main()
