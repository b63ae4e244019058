"""PostgreSQL through asyncpg, bounded in how long it connects, works on a statement and waits for a lock."""

from collections.abc import Callable
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import URL, Connection, Executable, func, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from mailroom.persistence.engines.base import START_OR_CHECK, Connect
from mailroom.settings import DatabaseSettings

_CHANNEL = "mailroom_outbox"
MIGRATION_LOCK = 0x6D61696C726F6F6D
"""The advisory lock of whoever migrates ("mailroom")."""
MILLISECONDS = 1_000
LOOKS = 20
"""How often two connections compare their sessions: on a busy pooler others come between."""
_UNPREPARED = (
    "a pooler shares sessions between transactions: put ?prepared_statement_cache_size=0 at the end of DATABASE__URL"
)
POOLER = {
    "08P01": "a pooler may refuse limits at the start of a connection: set database.statement_timeout_seconds = 0 and "
    "database.lock_timeout_seconds = 0, and give them to the role",
    "26000": _UNPREPARED,
    "42P05": _UNPREPARED,
}
"""What to do about a protocol violation, and about a prepared statement that is not there, or is there already."""


class PostgresChannel:
    """LISTEN and NOTIFY. Behind a pooler that shares connections between transactions nothing is ever heard."""

    def notify(self, message: str) -> Executable:
        return select(func.pg_notify(_CHANNEL, message))

    async def listen(self, connection: AsyncConnection, heard: Callable[[str], None], lost: Callable[[], None]) -> None:
        raw = await connection.get_raw_connection()
        driver: Any = raw.driver_connection
        driver.add_termination_listener(lambda _connection: lost())
        await driver.add_listener(_CHANNEL, lambda _connection, _pid, _channel, message: heard(message))

    async def is_shared(self, connection: AsyncConnection, connect: Connect) -> bool:
        """A pooler makes up the process id that it gives at the start, and hands out the session that was used last."""
        raw = await connection.get_raw_connection()
        driver: Any = raw.driver_connection
        if await _session(connection) == driver.get_server_pid():
            return False
        async with connect() as another:
            for _ in range(LOOKS):
                mine = await _session(connection)
                if await _session(another) == mine or await _session(connection) != mine:
                    return True
        return False


class Postgres:
    unreachable: tuple[type[Exception], ...] = (asyncpg.PostgresError, asyncpg.InterfaceError)
    channel = PostgresChannel()

    def options(self, settings: DatabaseSettings) -> dict[str, Any]:
        bounds = {
            "statement_timeout": settings.statement_timeout_seconds,
            "lock_timeout": settings.lock_timeout_seconds,
        }
        session = {name: str(int(value * MILLISECONDS)) for name, value in bounds.items() if value}
        return {
            "connect_args": {
                "timeout": settings.connect_timeout_seconds,
                "server_settings": session,
                **_statements(make_url(settings.url.get_secret_value())),
            },
            "isolation_level": settings.isolation_level,
            "pool_pre_ping": True,
        }

    def remedy(self, error: BaseException) -> str:
        return POOLER.get(str(getattr(error, "sqlstate", "")), START_OR_CHECK)

    def prepare(self, engine: AsyncEngine, settings: DatabaseSettings) -> None:
        """Nothing to listen to."""

    def before_migrating(self, connection: Connection) -> None:
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:mailroom)"), {"mailroom": MIGRATION_LOCK})


async def _session(connection: AsyncConnection) -> int:
    """Which of the server's processes answers."""
    return int((await connection.execute(select(func.pg_backend_pid()))).scalar_one())


def _statements(url: URL) -> dict[str, Any]:
    """Without a cache nothing is prepared under a name: a pooler may send the next transaction to another session."""
    if url.query.get("prepared_statement_cache_size") != "0":
        return {}
    return {"statement_cache_size": 0, "prepared_statement_name_func": lambda: ""}


KIND = Postgres()
