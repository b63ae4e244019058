"""An empty database for one test: a file, or one on a server that is dropped afterwards.

A server is the one that TEST_POSTGRES_URL or TEST_SQLSERVER_URL names, else the one that compose.yaml runs on this
machine with the password of .env.example. Its user must be allowed to create databases.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

from pydantic import SecretStr
from sqlalchemy import make_url, text

from mailroom.persistence.database import create_engine
from mailroom.settings import DatabaseSettings
from mailroom.settings_sections import BACKENDS

PRESENT = tuple(
    backend.kind for backend in BACKENDS.values() if find_spec(f"mailroom.persistence.engines.{backend.kind}")
)
"""The kinds that mailroom has here: one in a project, all of them in the template."""
HERE = {
    "postgres": "postgresql+asyncpg://postgres:postgres@127.0.0.1:5432/postgres",
    "sqlserver": "mssql+aioodbc://sa:Only-here-1@127.0.0.1:1433/master?TrustServerCertificate=yes",
}
DROPPING = {
    "postgres": ("DROP DATABASE {name} WITH (FORCE)",),
    "sqlserver": ("ALTER DATABASE {name} SET SINGLE_USER WITH ROLLBACK IMMEDIATE", "DROP DATABASE {name}"),
}


def server(kind: str) -> str | None:
    """The URL of the server that the environment names for this kind."""
    return os.environ.get(_variable(kind)) or None


def is_required(kind: str) -> bool:
    """Whether TEST_REQUIRE, a list of kinds separated by commas, says that its server must be there."""
    return kind in os.environ.get("TEST_REQUIRE", "").split(",")


def problem(kind: str) -> str | None:
    """Why there can be no database of this kind now, and what to do; None if there can. A server is asked once."""
    if kind == "sqlite":
        return None
    reason = _refusal(server(kind) or HERE[kind])
    return reason and f"no {kind}: start the server, or let {_variable(kind)} name one ({reason})"


@contextmanager
def fresh(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty database that is gone after the block. SQLite's file lies in the folder."""
    if kind == "sqlite":
        yield f"sqlite+aiosqlite:///{folder / 'test.db'}"
        return
    url, name = server(kind) or HERE[kind], f"mailroom_{uuid4().hex}"
    asyncio.run(_execute(url, f"CREATE DATABASE {name}"))
    try:
        yield make_url(url).set(database=name).render_as_string(hide_password=False)
    finally:
        asyncio.run(_execute(url, *(statement.format(name=name) for statement in DROPPING[kind])))


def _variable(kind: str) -> str:
    return f"TEST_{kind.upper()}_URL"


@cache
def _refusal(url: str) -> str | None:
    try:
        asyncio.run(_execute(url, "SELECT 1"))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


async def _execute(url: str, *statements: str) -> None:
    engine = create_engine(DatabaseSettings(url=SecretStr(url)))
    try:
        async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            for statement in statements:
                await connection.execute(text(statement))
    finally:
        await engine.dispose()
