"""Databases for the benchmarks: new ones, filled as fast as they can be, and what is timed on them."""

import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

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
"""How many rows a claim takes."""

ROWS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) "
    "INSERT INTO outbox_messages ({columns}) SELECT lower(hex(randomblob(16))), {values} FROM n",
    "postgres": "INSERT INTO outbox_messages ({columns}) SELECT gen_random_uuid(), {values} "
    "FROM generate_series(1, {count}) AS n(i)",
}
KINDS = sorted(ROWS)
COLUMNS = (
    "message_id, kind, event_type, event_version, payload, headers, occurred_on, available_on, attempts, ordering_key, "
    "processed_on"
)
NOW = {"sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now')", "postgres": "statement_timestamp()"}
LONG_AGO = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now', '-60 days', i || ' seconds')",
    "postgres": "statement_timestamp() - interval '60 days' + i * interval '1 second'",
}
"""One row a second, so that a million rows are over when 48 days are left."""
PENDING = dict.fromkeys(ROWS, "NULL")


async def fill(database: Database, count: int, *, processed: dict[str, str], keys: int = 0) -> None:
    """Adds so many rows, which were processed NOW, LONG_AGO or are PENDING; keys take turns, if there are any."""
    now = NOW[database.kind]
    key = f"'key ' || (i % {keys})" if keys else "NULL"
    values = f"""'integration', 'bench.happened', 1, '{{"number": 1}}', '{{}}', {now}, {now}, 0, {key}, """
    values += processed[database.kind]
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
