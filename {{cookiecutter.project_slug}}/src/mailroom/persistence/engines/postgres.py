"""PostgreSQL through asyncpg, bounded in how long it connects, works on a statement and waits for a lock."""

from collections.abc import Callable
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import Connection, Executable, func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from mailroom.persistence.engines.base import START_OR_CHECK
from mailroom.settings import DatabaseSettings

_CHANNEL = "mailroom_outbox"
MIGRATION_LOCK = 0x6D61696C726F6F6D
"""The advisory lock of whoever migrates ("mailroom")."""
MILLISECONDS = 1_000


class PostgresChannel:
    """LISTEN and NOTIFY. Behind a pooler that shares connections between transactions nothing is ever heard."""

    def notify(self, message: str) -> Executable:
        return select(func.pg_notify(_CHANNEL, message))

    async def listen(self, connection: AsyncConnection, heard: Callable[[str], None], lost: Callable[[], None]) -> None:
        raw = await connection.get_raw_connection()
        driver: Any = raw.driver_connection
        driver.add_termination_listener(lambda _connection: lost())
        await driver.add_listener(_CHANNEL, lambda _connection, _pid, _channel, message: heard(message))


class Postgres:
    unreachable: tuple[type[Exception], ...] = (asyncpg.PostgresError, asyncpg.InterfaceError)
    remedy = START_OR_CHECK
    channel = PostgresChannel()

    def options(self, settings: DatabaseSettings) -> dict[str, Any]:
        bounds = {
            "statement_timeout": settings.statement_timeout_seconds,
            "lock_timeout": settings.lock_timeout_seconds,
        }
        session = {name: str(int(value * MILLISECONDS)) for name, value in bounds.items() if value}
        return {
            "connect_args": {"timeout": settings.connect_timeout_seconds, "server_settings": session},
            "isolation_level": settings.isolation_level,
            "pool_pre_ping": True,
        }

    def prepare(self, engine: AsyncEngine, settings: DatabaseSettings) -> None:
        """Nothing to listen to."""

    def before_migrating(self, connection: Connection) -> None:
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:mailroom)"), {"mailroom": MIGRATION_LOCK})


KIND = Postgres()
