"""SQLite has a single writer. `BEGIN IMMEDIATE` takes its place in the queue at the first statement, where the busy
timeout applies; a transaction that read first and writes later would fail at once instead. Readers begin deferred,
so that they never wait.
"""

from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import ConnectionPoolEntry

from mailroom.persistence.engines.base import READS_ONLY
from mailroom.settings import DatabaseSettings


class Sqlite:
    unreachable: tuple[type[Exception], ...] = ()
    channel = None

    def options(self, settings: DatabaseSettings) -> dict[str, Any]:
        return {"connect_args": {"timeout": settings.busy_timeout_seconds}}

    def remedy(self, error: BaseException) -> str:
        return "check DATABASE__URL"

    def prepare(self, engine: AsyncEngine, settings: DatabaseSettings) -> None:
        event.listen(engine.sync_engine, "connect", _prepare)
        event.listen(engine.sync_engine, "begin", _begin)
        event.listen(engine.sync_engine, "checkin", _end)

    def before_migrating(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        if not driver.in_transaction:  # left to itself, the driver begins at the first INSERT only
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def _prepare(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin(connection: Connection) -> None:
    reads_only = connection.get_execution_options().get(READS_ONLY)
    connection.exec_driver_sql("BEGIN DEFERRED" if reads_only else "BEGIN IMMEDIATE")


def _end(connection: DBAPIConnection | None, _entry: ConnectionPoolEntry) -> None:
    """A COMMIT that SQLite refuses leaves the transaction open, and SQLAlchemy takes it for ended."""
    if connection is not None and connection.driver_connection.in_transaction:
        connection.rollback()


KIND = Sqlite()
