"""What is in the database, read past the framework; and time travel, for when nobody is alive to be confused."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from orders import Base
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from mailroom.persistence.tables import PENDING, MailroomBase

TIME = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f000', 'now', '{seconds} seconds')",
    "postgresql": "statement_timestamp() + interval '{seconds} seconds'",
}
SERIES = {
    "sqlite": (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})",
        "lower(hex(randomblob(16)))",
    ),
    "postgresql": ("WITH n(i) AS (SELECT generate_series(1, {count}))", "gen_random_uuid()"),
}
"""How to say "so many rows", and a new id."""
SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class Evidence:
    """One database, and a folder for the processes that work on it."""

    url: str
    folder: Path

    @classmethod
    def of_new_database(cls, url: str, folder: Path) -> "Evidence":
        async def create_tables(engine: AsyncEngine) -> None:
            async with engine.begin() as connection:
                for metadata in (MailroomBase.metadata, Base.metadata):
                    await connection.run_sync(metadata.create_all)

        evidence = cls(url, folder)
        asyncio.run(evidence._with_engine(create_tables))
        return evidence

    def ask(self, statement: str) -> list[Any]:
        """Rows, or the values themselves where a row has only one. Ids are written as SQLite does."""

        async def execute(engine: AsyncEngine) -> list[Any]:
            async with engine.begin() as connection:
                result = await connection.execute(text(statement))
                return [tuple(map(_plain, row)) for row in result] if result.returns_rows else []

        rows = asyncio.run(self._with_engine(execute))
        return [row[0] if len(row) == 1 else row for row in rows]

    def count(self, table: str, where: str = "true") -> int:
        (number,) = self.ask(f"SELECT count(*) FROM {table} WHERE {where}")
        return int(number)

    @property
    def pending(self) -> int:
        return self.count("outbox_messages", PENDING)

    @property
    def orders(self) -> set[str]:
        """The ids of what was committed: this table alone decides that."""
        return set(self.ask("SELECT id FROM orders"))

    @property
    def reservations(self) -> Counter[str]:
        """How many each order has."""
        return Counter(self.ask("SELECT order_id FROM reservations"))

    @property
    def receipts(self) -> Counter[str]:
        return Counter(self.ask("SELECT order_id FROM receipts"))

    def let_time_pass(self) -> None:
        """Leases have run out, backoffs are over, and what was processed is old enough to be purged."""
        just, long_ago = self._time(-1), self._time(-30 * SECONDS_PER_DAY)
        self.ask(f"UPDATE outbox_messages SET locked_until = {just} WHERE lock_token IS NOT NULL")
        self.ask(f"UPDATE outbox_messages SET available_on = {just} WHERE {PENDING}")
        self.ask(f"UPDATE outbox_messages SET processed_on = {long_ago} WHERE processed_on IS NOT NULL")
        unfinished = f"SELECT message_id FROM outbox_messages WHERE {PENDING}"
        self.ask(f"UPDATE inbox_messages SET processed_on = {long_ago} WHERE message_id NOT IN ({unfinished})")

    def a_relay_died_holding_everything(self) -> None:
        """All that is pending was claimed, by a relay that is gone and whose leases have run out."""
        token = f"lock_token = '{uuid4().hex}', locked_until = {self._time(-1)}"
        self.ask(f"UPDATE outbox_messages SET {token} WHERE {PENDING}")

    def much_has_expired(self, count: int) -> None:
        """So many messages were sent and handled here a month ago."""
        series, new_id = SERIES[self._backend]
        long_ago = self._time(-30 * SECONDS_PER_DAY)
        columns = (
            "message_id, kind, event_type, event_version, payload, headers, occurred_on, available_on, processed_on"
        )
        values = f"{new_id}, 'integration', 'shop.order-placed', 1, '{{}}', '{{}}', {long_ago}, {long_ago}, {long_ago}"
        rows = f"INSERT INTO outbox_messages ({columns}) SELECT {values} FROM n"
        beginning = series.format(count=count)
        self.ask(f"{beginning} {rows}")
        handled = "SELECT message_id, event_type, processed_on FROM outbox_messages"
        self.ask(f"INSERT INTO inbox_messages (message_id, event_type, processed_on) {handled}")

    @property
    def deadlocks(self) -> int:
        """How many the server has seen in this database; SQLite, with its single writer, has none."""
        if self._backend == "sqlite":
            return 0
        (seen,) = self.ask("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(seen)

    def nothing_is_left(self) -> None:
        """Fails if a row is pending, held or dead-lettered."""
        left = self.ask(
            "SELECT id, event_type, attempts, last_error, locked_until, dead_lettered_on FROM outbox_messages "
            "WHERE processed_on IS NULL OR dead_lettered_on IS NOT NULL OR lock_token IS NOT NULL"
        )
        assert not left, f"{len(left)} rows are left, for example {left[:3]}"

    def _time(self, seconds: int) -> str:
        """The database's clock, moved by so much."""
        return TIME[self._backend].format(seconds=seconds)

    @property
    def _backend(self) -> str:
        return make_url(self.url).get_backend_name()

    async def _with_engine(self, work: Any) -> Any:
        engine = create_async_engine(self.url, poolclass=NullPool)
        try:
            return await work(engine)
        finally:
            await engine.dispose()


def _plain(value: Any) -> Any:
    return value.hex if isinstance(value, UUID) else value
