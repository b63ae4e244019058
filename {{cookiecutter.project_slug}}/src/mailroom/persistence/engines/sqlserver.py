"""SQL Server through aioodbc and pyodbc, with Microsoft's ODBC driver."""

from typing import Any

from sqlalchemy import Connection, event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import ConnectionPoolEntry

from mailroom.persistence.engines.base import START_OR_CHECK
from mailroom.settings import DatabaseSettings

MILLISECONDS = 1_000


class SqlServer:
    unreachable: tuple[type[Exception], ...] = ()
    channel = None

    def options(self, settings: DatabaseSettings) -> dict[str, Any]:
        return {
            "connect_args": {"timeout": max(1, round(settings.connect_timeout_seconds))},
            "isolation_level": settings.isolation_level,
            "pool_pre_ping": True,
            "use_setinputsizes": True,
        }

    def remedy(self, error: BaseException) -> str:
        return f"{START_OR_CHECK}; where the ODBC driver comes from is in README.md"

    def prepare(self, engine: AsyncEngine, settings: DatabaseSettings) -> None:
        def bound(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
            if settings.lock_timeout_seconds:
                cursor = connection.cursor()
                cursor.execute(f"SET LOCK_TIMEOUT {int(settings.lock_timeout_seconds * MILLISECONDS)}")
                cursor.close()
            if settings.statement_timeout_seconds:
                # pyodbc's own connection, below aioodbc's: the server itself has no such limit.
                connection.driver_connection._conn.timeout = max(1, round(settings.statement_timeout_seconds))

        event.listen(engine.sync_engine, "connect", bound)

    def before_migrating(self, connection: Connection) -> None:
        connection.detach()  # these bounds outlive the transaction, and nobody else shall get a session without them
        driver: Any = connection.connection.driver_connection
        driver._conn.timeout = 0
        connection.execute(
            text(
                "SET LOCK_TIMEOUT -1; EXEC sp_getapplock @Resource = 'mailroom/migration', "
                "@LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = -1"
            )
        )


KIND = SqlServer()
