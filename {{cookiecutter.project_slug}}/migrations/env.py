"""Runs the migrations: for the project's `db` commands, for plain `alembic`, and as SQL text (`alembic … --sql`).

The template owns this file. What the database is compared with is said in alembic.ini:

    [mailroom]
    models = package.module:attribute        a MetaData, or a list or tuple of them

The tables of mailroom are always added. The database is `config.attributes["connection"]`, which
mailroom.persistence.schema sets, or else the one of the project's settings.

Another data source has its migrations in migrations/<name>/versions, and its own tables, if any, under
`[mailroom:<name>] models`. mailroom.persistence.schema says which one it is.
"""

import asyncio
import pkgutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from alembic import context
from sqlalchemy import Connection, MetaData, make_url

from mailroom.errors import ConfigurationError, SchemaError
from mailroom.persistence.database import create_engine
from mailroom.persistence.engines import engine_kind
from mailroom.persistence.tables import MailroomBase, UtcDateTime
from mailroom.settings import Settings
from mailroom.settings_sections import DEFAULT_SOURCE

config = context.config


def models() -> list[MetaData]:
    """What the database should look like: the project's tables and mailroom's."""
    source = config.attributes.get("data_source", DEFAULT_SOURCE)
    section = "mailroom" if source == DEFAULT_SOURCE else f"mailroom:{source}"
    name = config.get_section(section, {}).get("models")
    if name is None and source != DEFAULT_SOURCE:
        return [MailroomBase.metadata]
    if name is None:
        raise ConfigurationError(
            f"{config.config_file_name} does not say where the project's tables are, so migrations cannot be "
            "compared with them; add a line `models = package.module:attribute` under `[mailroom]`"
        )
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"`[{section}] models = {name}` in {config.config_file_name} cannot be imported ({error}); "
            "write it as package.module:attribute"
        ) from error
    listed = [found] if isinstance(found, MetaData) else found
    if not isinstance(listed, list | tuple) or not all(isinstance(item, MetaData) for item in listed):
        raise ConfigurationError(
            f"`[{section}] models = {name}` in {config.config_file_name} is neither a MetaData nor a list of them; "
            "name the `metadata` of your declarative base"
        )
    return list(dict.fromkeys([*listed, MailroomBase.metadata]))


def render_item(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    """A migration is frozen: it says what a type of mailroom is in the database, and imports nothing of mailroom."""
    if kind == "type" and isinstance(item, UtcDateTime):
        return "sa.DateTime(timezone=True)"
    return False


def run(connection: Connection) -> None:
    """Run everything that was asked for in one transaction: a migration that fails leaves nothing half done."""
    on_sqlite = connection.dialect.name == "sqlite"
    context.configure(
        connection=connection,
        target_metadata=models(),
        compare_type=True,
        render_item=render_item,
        render_as_batch=on_sqlite,
        transactional_ddl=True,
    )
    kind = engine_kind(connection.dialect.name)
    if not on_sqlite:
        with context.begin_transaction():
            kind.before_migrating(connection)
            context.run_migrations()
        return
    with foreign_keys_off(connection), context.begin_transaction():
        kind.before_migrating(connection)
        before = dangling_rows(connection)
        context.run_migrations()
        refuse(dangling_rows(connection) - before)


@contextmanager
def foreign_keys_off(connection: Connection) -> Iterator[None]:
    """Let SQLite rebuild tables: dropping the old one would else delete, or refuse for, the rows that refer to it.

    Goes past SQLAlchemy, because SQLite ignores the pragma inside a transaction.
    """
    cursor = connection.connection.cursor()
    cursor.execute("PRAGMA foreign_keys")
    was_on = cursor.fetchone() == (1,)
    cursor.execute("PRAGMA foreign_keys = OFF")
    try:
        yield
    finally:
        if was_on:
            cursor.execute("PRAGMA foreign_keys = ON")
        cursor.close()


def dangling_rows(connection: Connection) -> Counter[tuple[str, str]]:
    """How many rows of which table refer to a row that is not there, by (table, table referred to)."""
    return Counter((row[0], row[2]) for row in connection.exec_driver_sql("PRAGMA foreign_key_check"))


def refuse(dangling: Counter[tuple[str, str]]) -> None:
    if dangling:
        rows = ", ".join(f"{count} of {table} to {parent}" for (table, parent), count in dangling.items())
        raise SchemaError(
            f"the migration would leave rows that refer to nothing ({rows}), so nothing was changed; while SQLite "
            "migrates, foreign keys neither cascade nor refuse: let the migration delete such rows by itself"
        )


def run_as_text() -> None:
    """Write the SQL instead of running it; needs no database and no driver."""
    url = config.attributes.get("url") or Settings.load().database.url.get_secret_value()
    dialect_options: dict[str, Any] = {"paramstyle": "named"}
    if make_url(url).get_backend_name() == "mssql":
        dialect_options["deprecate_large_types"] = True  # no server to ask: else text would be NTEXT, as before 2012
    context.configure(
        url=url,
        target_metadata=models(),
        literal_binds=True,
        transactional_ddl=True,
        dialect_opts=dialect_options,
    )
    with context.begin_transaction():
        context.run_migrations()


async def run_on_the_configured_database() -> None:
    engine = create_engine(Settings.load().database)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(run)
    finally:
        await engine.dispose()


if context.is_offline_mode():
    run_as_text()
elif "connection" in config.attributes:
    run(config.attributes["connection"])
else:
    asyncio.run(run_on_the_configured_database())
