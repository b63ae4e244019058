"""Which databases the contract is tried on, and a fresh one of each for a test.

SQLite is a file. A server is the one that TEST_POSTGRES_URL or TEST_SQLSERVER_URL names, else a PostgreSQL on its
standard port here. What is not there is skipped, unless TEST_REQUIRE (a list of kinds) says that it must be.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import URL, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from mailroom.settings_sections import BACKENDS

REQUIRED = os.environ.get("TEST_REQUIRE", "").split(",")
SERVERS = {
    "postgres": os.environ.get("TEST_POSTGRES_URL") or "postgresql+asyncpg://postgres:postgres@127.0.0.1:5432/postgres",
    "sqlserver": os.environ.get("TEST_SQLSERVER_URL"),
}
PRESENT = [backend.kind for backend in BACKENDS.values() if find_spec(f"mailroom.persistence.engines.{backend.kind}")]
"""Those that this project has."""
KINDS = [kind for kind in PRESENT if kind == "sqlite" or SERVERS[kind] or kind in REQUIRED]
"""Those that the contract is tried on. A SQL Server is on few machines; test_engines.py says so where it is not."""

WAITING = {
    "postgres": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    "sqlserver": "SELECT count(*) FROM sys.dm_tran_locks WHERE request_status = 'WAIT'",
}
"""How many sessions wait for a lock of another one."""


@contextmanager
def fresh(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database that is gone afterwards."""
    if kind == "sqlite":
        yield f"sqlite+aiosqlite:///{folder / 'bank.db'}"
        return
    problem = _problem(kind)
    if problem:
        if kind in REQUIRED:
            pytest.fail(problem)
        pytest.skip(problem)
    name = f"mailroom_{uuid4().hex}"
    url = make_url(SERVERS[kind] or "")
    asyncio.run(_execute(url, f"CREATE DATABASE {name}"))
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        asyncio.run(_execute(url, *_dropping(kind, name)))


@cache
def _problem(kind: str) -> str | None:
    try:
        asyncio.run(_execute(make_url(SERVERS[kind] or ""), "SELECT 1"))
    except Exception as error:
        return f"no {kind}: set TEST_{kind.upper()}_URL ({type(error).__name__}: {error})"
    return None


def _dropping(kind: str, name: str) -> list[str]:
    if kind == "postgres":
        return [f"DROP DATABASE {name} WITH (FORCE)"]
    return [f"ALTER DATABASE {name} SET SINGLE_USER WITH ROLLBACK IMMEDIATE", f"DROP DATABASE {name}"]


async def _execute(url: URL, *statements: str) -> None:
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    async with engine.connect() as connection:
        for statement in statements:
            await connection.execute(text(statement))
    await engine.dispose()
