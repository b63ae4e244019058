"""What is in the database, read past the framework; and time travel, for when nobody is alive to be confused."""

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from orders import Base
from sqlalchemy import create_engine

from mailroom.persistence.tables import PENDING, MailroomBase

TIME = "strftime('%Y-%m-%d %H:%M:%f000', 'now', ?)"


@dataclass(frozen=True)
class Evidence:
    """One database file."""

    file: Path

    @classmethod
    def of_new_database(cls, file: Path) -> "Evidence":
        engine = create_engine(f"sqlite:///{file}")
        for metadata in (MailroomBase.metadata, Base.metadata):
            metadata.create_all(engine)
        engine.dispose()
        return cls(file)

    def ask(self, statement: str, *parameters: Any) -> list[Any]:
        """Rows, or the values themselves where a row has only one."""
        with closing(sqlite3.connect(self.file, timeout=20)) as connection, connection:
            rows = connection.execute(statement, parameters).fetchall()
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
        self.ask(f"UPDATE outbox_messages SET locked_until = {TIME} WHERE lock_token IS NOT NULL", "-1 seconds")
        self.ask(f"UPDATE outbox_messages SET available_on = {TIME} WHERE {PENDING}", "-1 seconds")
        self.ask(f"UPDATE outbox_messages SET processed_on = {TIME} WHERE processed_on IS NOT NULL", "-30 days")
        unfinished = f"SELECT message_id FROM outbox_messages WHERE {PENDING}"
        self.ask(f"UPDATE inbox_messages SET processed_on = {TIME} WHERE message_id NOT IN ({unfinished})", "-30 days")

    def a_relay_died_holding_everything(self) -> None:
        """All that is pending was claimed, by a relay that is gone and whose leases have run out."""
        self.ask(
            f"UPDATE outbox_messages SET lock_token = ?, locked_until = {TIME} WHERE {PENDING}",
            uuid4().hex,
            "-1 seconds",
        )

    def nothing_is_left(self) -> None:
        """Fails if a row is pending, held or dead-lettered."""
        left = self.ask(
            "SELECT id, event_type, attempts, last_error, locked_until, dead_lettered_on FROM outbox_messages "
            "WHERE processed_on IS NULL OR dead_lettered_on IS NOT NULL OR lock_token IS NOT NULL"
        )
        assert not left, f"{len(left)} rows are left, for example {left[:3]}"
