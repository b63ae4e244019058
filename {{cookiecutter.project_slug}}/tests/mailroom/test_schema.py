"""The tables, how they are migrated, and how times are stored (contract T1-T4)."""

import logging
import re
import shutil
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from alembic import command as alembic
from alembic.config import Config
from pydantic import SecretStr
from sqlalchemy import Dialect, Index, insert, inspect, make_url, select, text
from sqlalchemy.exc import IntegrityError, OperationalError, StatementError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.schema import CreateIndex, CreateTable

from mailroom.errors import ConfigurationError, DatabaseUnavailableError, SchemaError
from mailroom.persistence import schema
from mailroom.persistence.database import create_engine
from mailroom.persistence.tables import InboxMessage, MailroomBase, OutboxMessage
from mailroom.settings import DatabaseSettings

MIGRATIONS = Path(__file__).parents[2] / "migrations"
DIALECTS: dict[str, dict[str, Any]] = {
    "sqlite+aiosqlite": {},
    "postgresql+asyncpg": {},
    "mssql+aioodbc": {"deprecate_large_types": True},
}
TABLES = list(MailroomBase.metadata.sorted_tables)
INDEXES = [index for table in TABLES for index in sorted(table.indexes, key=lambda index: str(index.name))]

MODELS = """
from mailroom.persistence.tables import UtcDateTime
from sqlalchemy import Column, Index, Integer, MetaData, String, Table

none = MetaData()
parcels = MetaData()
Table(
    "parcels", parcels, Column("id", Integer, primary_key=True), Column("label", String(20), nullable=False),
    Column("sent_on", UtcDateTime, nullable=False), Index("ix_parcels_label", "label"),
)
both = (none, parcels)
nonsense = "parcels"
"""

REVISION = """
import sqlalchemy as sa
from alembic import op

revision = "{name}"
down_revision = "{after}"


def upgrade():
    {upgrade}


def downgrade():
    pass
"""


class Project:
    """A project in a folder of its own: mailroom's migrations, and whatever a test adds."""

    def __init__(self, folder: Path, module: str) -> None:
        self.ini = folder / "alembic.ini"
        self.versions = folder / "migrations" / "versions"
        self.database = folder / "shop.db"
        self.url = f"sqlite+aiosqlite:///{self.database}"
        self._module = module
        self.versions.mkdir(parents=True)
        for name in ("env.py", "script.py.mako", "versions/0001_initial.py"):
            shutil.copy(MIGRATIONS / name, folder / "migrations" / name)
        (folder / f"{module}.py").write_text(MODELS, encoding="utf-8")
        self.use_models("none")

    def use_models(self, attribute: str) -> None:
        self.ini.write_text(
            "[alembic]\nscript_location = %(here)s/migrations\nprepend_sys_path = %(here)s\npath_separator = os\n"
            f"[mailroom]\nmodels = {self._module}:{attribute}\n",
            encoding="utf-8",
        )

    def add_revision(self, name: str, upgrade: list[str], *, after: str = "0001") -> None:
        text = REVISION.format(name=name, after=after, upgrade="\n    ".join(upgrade))
        (self.versions / f"{name}.py").write_text(text, encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.syspath_prepend(tmp_path)  # alembic prepends it too; this takes it away again
    monkeypatch.delenv(schema.INI_VARIABLE, raising=False)
    return Project(tmp_path, f"models_{uuid4().hex}")


@pytest.fixture
async def engine(project: Project) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(DatabaseSettings(url=SecretStr(project.url)))
    yield engine
    await engine.dispose()


@pytest.fixture
async def plain_engine(project: Project) -> AsyncIterator[AsyncEngine]:
    """As a user may make one: the driver begins transactions when it likes, and foreign keys are off."""
    engine = create_async_engine(project.url)
    yield engine
    await engine.dispose()


async def table_names(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))


async def execute(engine: AsyncEngine, *statements: str) -> None:
    async with engine.begin() as connection:
        for statement in statements:
            await connection.execute(text(statement))


async def rows(engine: AsyncEngine, query: str) -> list[tuple[object, ...]]:
    async with engine.connect() as connection:
        return [tuple(row) for row in await connection.execute(text(query))]


def outbox_row(**values: object) -> dict[str, object]:
    now = datetime.now(UTC)
    return {
        "message_id": uuid4(),
        "kind": "integration",
        "event_type": "shop.order-placed",
        "event_version": 1,
        "payload": "{}",
        "headers": "{}",
        "occurred_on": now,
        "available_on": now,
    } | values


# What the tables are


async def test_the_migration_makes_what_the_models_say(engine: AsyncEngine, project: Project) -> None:
    await schema.upgrade(engine, ini=project.ini)

    assert await schema.check(engine, ini=project.ini) == []


@pytest.mark.parametrize("url", DIALECTS)
def test_the_migration_says_to_every_database_what_the_models_say(project: Project, url: str) -> None:
    dialect = dialect_of(url)
    written = sql_of_the_upgrade(project, url)

    for made in [CreateTable(table) for table in TABLES] + [CreateIndex(index) for index in INDEXES]:
        assert one_line(str(made.compile(dialect=dialect))) in written


@pytest.mark.parametrize(
    ("url", "types"),
    [
        ("sqlite+aiosqlite", ["INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"]),
        ("postgresql+asyncpg", ["BIGINT GENERATED BY DEFAULT AS IDENTITY", "UUID", "TIMESTAMP WITH TIME ZONE"]),
        (
            "mssql+aioodbc",
            ["BIGINT NOT NULL IDENTITY", "UNIQUEIDENTIFIER", "DATETIMEOFFSET", "NVARCHAR(200)", "NVARCHAR(max)"],
        ),
    ],
)
def test_each_database_gets_its_own_types(project: Project, url: str, types: list[str]) -> None:
    written = sql_of_the_upgrade(project, url)

    assert [name for name in types if name not in written] == []


async def test_pending_rows_are_found_by_partial_indexes(engine: AsyncEngine, project: Project) -> None:
    await schema.upgrade(engine, ini=project.ini)

    in_database = {name: str(sql) for name, sql in await rows(engine, "SELECT name, sql FROM sqlite_master")}
    for index in INDEXES:
        _, _, predicate = in_database[index.name].partition(" WHERE ")
        assert predicate == predicate_of(index), index.name


def predicate_of(index: Index) -> str:
    """`alembic check` does not compare it (contract T4)."""
    predicates = [index.dialect_options[name]["where"] for name in ("sqlite", "postgresql", "mssql")]
    said = {"" if where is None else str(where) for where in predicates}
    assert len(said) == 1, f"{index.name} says different things to different databases"
    return said.pop()


def test_names_fit_63_bytes() -> None:
    names = [table.name for table in TABLES] + [column.name for table in TABLES for column in table.columns]
    names += [str(constraint.name) for table in TABLES for constraint in table.constraints if constraint.name]
    names += [str(index.name) for index in INDEXES]

    assert [name for name in names if len(name.encode()) > 63] == []


def test_index_keys_fit_900_bytes_on_sql_server() -> None:
    size = {"BIGINT": 8, "UNIQUEIDENTIFIER": 16, "DATETIMEOFFSET": 10}
    dialect = dialect_of("mssql+aioodbc")

    for index in INDEXES:
        types = [column.type.compile(dialect) for column in index.columns]
        lengths = [
            size.get(name) or int(re.sub(r"\D", "", name)) * (2 if name.startswith("N") else 1) for name in types
        ]
        assert sum(lengths) <= 900, index.name


async def test_an_id_is_never_given_twice(engine: AsyncEngine, project: Project) -> None:
    await schema.upgrade(engine, ini=project.ini)

    for table in (OutboxMessage, InboxMessage):
        values = outbox_row(processed_on=datetime.now(UTC))
        values = {name: value for name, value in values.items() if name in table.__table__.columns}
        ids: list[int] = []
        for _ in range(2):
            async with engine.begin() as connection:
                result = await connection.execute(insert(table).values(values))
                ids += result.inserted_primary_key or []
                await connection.execute(text(f"DELETE FROM {table.__tablename__}"))
        assert ids == [1, 2]


async def test_a_message_id_is_stored_once_in_each_table(engine: AsyncEngine, project: Project) -> None:
    await schema.upgrade(engine, ini=project.ini)
    row = outbox_row()
    handled = {"message_id": row["message_id"], "event_type": "shop.order-placed", "processed_on": datetime.now(UTC)}

    for table, values in ((OutboxMessage, row), (InboxMessage, handled)):
        async with engine.begin() as connection:
            await connection.execute(insert(table).values(values))
        with pytest.raises(IntegrityError, match="message_id"):
            async with engine.begin() as connection:
                await connection.execute(insert(table).values(values))


async def test_a_kind_is_domain_or_integration(engine: AsyncEngine, project: Project) -> None:
    await schema.upgrade(engine, ini=project.ini)

    with pytest.raises(IntegrityError, match="ck_outbox_messages_kind"):
        async with engine.begin() as connection:
            await connection.execute(insert(OutboxMessage).values(outbox_row(kind="rumour")))


# Times


@pytest.mark.parametrize("hours", [0, 5.5, -8, 14])
async def test_a_time_is_stored_as_utc_and_read_back_aware(engine: AsyncEngine, project: Project, hours: float) -> None:
    await schema.upgrade(engine, ini=project.ini)
    moment = datetime(2024, 3, 31, 1, 59, 59, 123456, tzinfo=timezone(timedelta(hours=hours)))

    async with AsyncSession(engine) as session, session.begin():
        session.add(InboxMessage(message_id=uuid4(), event_type="shop.order-placed", processed_on=moment))
    async with AsyncSession(engine) as session:
        read = (await session.scalars(select(InboxMessage.processed_on))).one()
        found = await session.scalar(select(InboxMessage.id).where(InboxMessage.processed_on == moment))

    assert read == moment
    assert read.utcoffset() == timedelta(0)
    assert found == 1
    stored = await rows(engine, "SELECT processed_on FROM inbox_messages")
    assert str(stored[0][0]) == moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


async def test_a_naive_time_is_refused(engine: AsyncEngine, project: Project) -> None:
    await schema.upgrade(engine, ini=project.ini)

    with pytest.raises(StatementError, match="has no time zone"):
        async with engine.begin() as connection:
            await connection.execute(insert(OutboxMessage).values(outbox_row(available_on=datetime(2024, 1, 1))))


# Migrating


async def test_upgrade_downgrade_and_upgrade_again_keep_the_rows_of_the_user(
    engine: AsyncEngine, project: Project
) -> None:
    await schema.upgrade(engine, ini=project.ini)
    await execute(engine, "CREATE TABLE parcels (id INTEGER PRIMARY KEY)", "INSERT INTO parcels VALUES (7)")
    async with engine.begin() as connection:
        await connection.execute(insert(OutboxMessage).values(outbox_row()))

    await schema.downgrade(engine, "base", ini=project.ini)
    assert await table_names(engine) == {"alembic_version", "parcels"}
    assert await schema.current(engine) == ()

    await schema.upgrade(engine, ini=project.ini)
    assert await schema.current(engine) == schema.heads(ini=project.ini) == ("0001",)
    assert await rows(engine, "SELECT id FROM parcels") == [(7,)]


async def test_a_migration_that_fails_leaves_nothing_half_done(
    engine: AsyncEngine, plain_engine: AsyncEngine, project: Project
) -> None:
    project.add_revision("broken", ["op.create_table('half', sa.Column('id', sa.Integer()))", "op.execute('nonsense')"])

    for either in (engine, plain_engine):
        with pytest.raises(OperationalError, match="nonsense"):
            await schema.upgrade(either, ini=project.ini)
        assert await table_names(either) == set()


REBUILD = [
    "with op.batch_alter_table('parcels') as batch:",
    "    batch.add_column(sa.Column('note', sa.String(20)))",
    "    batch.alter_column('id', type_=sa.BigInteger())",
]


async def parcels_and_stamps(engine: AsyncEngine) -> None:
    await execute(
        engine,
        "CREATE TABLE parcels (id INTEGER PRIMARY KEY)",
        "CREATE TABLE stamps (parcel_id INTEGER REFERENCES parcels (id) ON DELETE CASCADE)",
        "INSERT INTO parcels VALUES (7)",
        "INSERT INTO stamps VALUES (7)",
    )


async def test_rebuilding_a_table_keeps_the_rows_that_refer_to_it(engine: AsyncEngine, project: Project) -> None:
    await parcels_and_stamps(engine)
    project.add_revision("rebuild", REBUILD)

    await schema.upgrade(engine, ini=project.ini)

    assert await rows(engine, "SELECT parcel_id FROM stamps") == [(7,)]
    assert await rows(engine, "PRAGMA foreign_keys") == [(1,)]


async def test_a_migration_must_not_leave_rows_that_refer_to_nothing(engine: AsyncEngine, project: Project) -> None:
    await parcels_and_stamps(engine)
    project.add_revision("careless", ["op.execute('DELETE FROM parcels')"])

    with pytest.raises(SchemaError, match=r"1 of stamps to parcels.*nothing was changed"):
        await schema.upgrade(engine, ini=project.ini)

    assert await rows(engine, "SELECT id FROM parcels") == [(7,)]
    assert await schema.current(engine) == ()


async def test_a_new_revision_holds_what_differs_and_imports_nothing_of_mailroom(
    engine: AsyncEngine, project: Project
) -> None:
    await schema.upgrade(engine, ini=project.ini)
    project.use_models("both")
    assert await schema.check(engine, ini=project.ini) == [
        "add table parcels",
        "add index ix_parcels_label(label) of parcels",
    ]

    path = await schema.revision(engine, 'C:\\new is "parcels"', ini=project.ini)
    await schema.upgrade(engine, ini=project.ini)

    assert path.parent == project.versions
    assert "mailroom" not in path.read_text(encoding="utf-8")
    assert await schema.check(engine, ini=project.ini) == []


async def test_an_empty_revision_is_the_users_to_fill(engine: AsyncEngine, project: Project) -> None:
    project.use_models("parcels")

    path = await schema.revision(engine, "fill in the labels", autogenerate=False, ini=project.ini)

    assert "op.create" not in path.read_text(encoding="utf-8")
    assert len(schema.heads(ini=project.ini)) == 1
    await schema.upgrade(engine, ini=project.ini)


async def test_check_says_in_words_what_differs(engine: AsyncEngine, project: Project) -> None:
    project.use_models("parcels")
    await schema.upgrade(engine, ini=project.ini)
    await execute(
        engine,
        "CREATE TABLE parcels "
        "(id INTEGER NOT NULL PRIMARY KEY, label VARCHAR(5), sent_on DATETIME NOT NULL, note TEXT)",
        "CREATE INDEX ix_inbox_messages_extra ON inbox_messages (event_type)",
    )

    assert set(await schema.check(engine, ini=project.ini)) == {
        "remove column parcels.note",
        "modify nullable parcels.label: True in the database, False in the model",
        "modify type parcels.label: VARCHAR(length=5) in the database, String(length=20) in the model",
        "add index ix_parcels_label(label) of parcels",
        "remove index ix_inbox_messages_extra(event_type) of inbox_messages",
    }


async def test_migrating_prints_nothing_and_leaves_logging_alone(
    engine: AsyncEngine, project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    existing = logging.getLogger("shop.orders")

    await schema.upgrade(engine, ini=project.ini)
    await schema.revision(engine, "nothing", ini=project.ini)
    await schema.upgrade(engine, ini=project.ini)
    await schema.check(engine, ini=project.ini)

    assert tuple(capfd.readouterr()) == ("", "")
    assert not existing.disabled


def test_plain_alembic_works_on_the_database_of_the_settings(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = project.ini.with_name("settings.toml")
    settings.write_text("", encoding="utf-8")
    monkeypatch.setenv("SETTINGS_FILE", str(settings))
    monkeypatch.setenv("DATABASE__URL", project.url)
    written = StringIO()

    alembic.upgrade(Config(str(project.ini)), "head")
    alembic.upgrade(Config(str(project.ini), output_buffer=written), "head", sql=True)

    with closing(sqlite3.connect(project.database)) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
    assert "PRIMARY KEY AUTOINCREMENT" in written.getvalue()


async def test_a_refusal_of_alembic_is_a_schema_error(engine: AsyncEngine, project: Project) -> None:
    with pytest.raises(SchemaError, match="not up to date"):
        await schema.check(engine, ini=project.ini)
    with pytest.raises(SchemaError, match="nowhere"):
        await schema.upgrade(engine, "nowhere", ini=project.ini)


@pytest.mark.parametrize(
    ("attribute", "reason"), [("nonsense", "neither a MetaData nor a list"), ("absent", "cannot be imported")]
)
async def test_models_that_are_no_metadata_are_refused(
    engine: AsyncEngine, project: Project, attribute: str, reason: str
) -> None:
    project.use_models(attribute)

    with pytest.raises(ConfigurationError, match=f"models = .*:{attribute}.*{reason}"):
        await schema.upgrade(engine, ini=project.ini)


# Finding the migrations


async def test_alembic_ini_is_named_by_the_variable_or_lies_in_the_working_directory(
    engine: AsyncEngine, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(ConfigurationError, match=r"no alembic.ini in .*ALEMBIC_CONFIG"):
        await schema.upgrade(engine)

    monkeypatch.setenv("ALEMBIC_CONFIG", str(project.ini))
    assert schema.heads() == ("0001",)

    monkeypatch.setenv("ALEMBIC_CONFIG", " ")
    monkeypatch.chdir(project.ini.parent)
    assert schema.heads() == ("0001",)


async def test_a_named_alembic_ini_must_be_there(
    engine: AsyncEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"gone\.ini, and there is no such file"):
        await schema.ensure_migrated(engine, command="shop", ini=tmp_path / "gone.ini")

    monkeypatch.setenv("ALEMBIC_CONFIG", str(tmp_path / "gone.ini"))
    with pytest.raises(ConfigurationError, match=r"ALEMBIC_CONFIG names .*gone\.ini"):
        await schema.ensure_migrated(engine, command="shop")


# Refusing to start


async def test_a_database_that_is_not_migrated_is_refused_with_the_command_to_run(
    engine: AsyncEngine, project: Project
) -> None:
    with pytest.raises(SchemaError) as refusal:
        await schema.ensure_migrated(engine, command="shop", ini=project.ini)

    assert str(refusal.value) == (
        f"the database {project.url} is not ready: missing: inbox_messages, outbox_messages; "
        "it is not migrated, and this code needs 0001. Run: shop db upgrade"
    )


async def test_a_migrated_database_is_accepted(engine: AsyncEngine, project: Project) -> None:
    await schema.upgrade(engine, ini=project.ini)

    await schema.ensure_migrated(engine, command="shop", ini=project.ini)


async def test_a_database_behind_the_code_is_refused(engine: AsyncEngine, project: Project) -> None:
    await schema.upgrade(engine, ini=project.ini)
    project.add_revision("newer", ["pass"])

    with pytest.raises(SchemaError, match=r"at migration 0001, and this code needs newer\. Run: shop db upgrade"):
        await schema.ensure_migrated(engine, command="shop", ini=project.ini)


async def test_a_database_ahead_of_the_code_is_accepted_with_a_warning_as_in_a_rolling_deployment(
    engine: AsyncEngine, project: Project, caplog: pytest.LogCaptureFixture
) -> None:
    project.add_revision("newer", ["pass"])
    await schema.upgrade(engine, ini=project.ini)
    (project.versions / "newer.py").unlink()

    await schema.ensure_migrated(engine, command="shop", ini=project.ini)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "at migration newer, which this code does not have" in record.getMessage()


async def test_without_alembic_ini_only_the_tables_must_be_there(
    engine: AsyncEngine, project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await schema.upgrade(engine, ini=project.ini)
    project.add_revision("newer", ["pass"])
    monkeypatch.chdir(tmp_path_factory.mktemp("installed"))

    await schema.ensure_migrated(engine, command="shop")

    await execute(engine, "DROP TABLE inbox_messages")
    with pytest.raises(SchemaError, match=r"missing: inbox_messages\. Run: shop db upgrade"):
        await schema.ensure_migrated(engine, command="shop")


async def test_start_up_does_not_wait_for_a_writer(engine: AsyncEngine, project: Project) -> None:
    await schema.upgrade(engine, ini=project.ini)

    async with engine.connect() as writer:
        await writer.execute(insert(OutboxMessage).values(outbox_row()))
        await schema.ensure_migrated(engine, command="shop", ini=project.ini)


async def test_a_database_that_cannot_be_reached_is_named_without_its_secrets(project: Project) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{project.ini.parent}/absent/shop.db?timeout=1")
    threads = set(threading.enumerate())

    for attempt in (
        schema.ensure_migrated(engine, command="shop", ini=project.ini),
        schema.upgrade(engine, ini=project.ini),
    ):
        with pytest.raises(DatabaseUnavailableError, match=r"absent/shop\.db cannot be used: unable to open"):
            await attempt
    await engine.dispose()
    for of_the_driver in set(threading.enumerate()) - threads:
        of_the_driver.join()


async def test_a_file_that_is_no_database_cannot_be_used(
    engine: AsyncEngine, plain_engine: AsyncEngine, project: Project
) -> None:
    project.database.write_text("these are not the bytes of a database" * 50, encoding="utf-8")

    for either in (engine, plain_engine):
        with pytest.raises(DatabaseUnavailableError, match="file is not a database"):
            await schema.ensure_migrated(either, command="shop", ini=project.ini)


async def test_a_password_shows_in_no_error(
    engine: AsyncEngine, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.sync_engine, "url", make_url("postgresql+asyncpg://shop:s3cret@db/shop?password=s3cret"))

    with pytest.raises(SchemaError, match=r"postgresql\+asyncpg://shop:\*\*\*@db/shop is") as refusal:
        await schema.ensure_migrated(engine, command="shop", ini=project.ini)
    assert "s3cret" not in str(refusal.value)


def dialect_of(url: str) -> Dialect:
    return make_url(f"{url}://").get_dialect()(**DIALECTS[url])


def sql_of_the_upgrade(project: Project, url: str) -> str:
    """What `alembic upgrade head --sql` writes, on one line."""
    output = StringIO()
    migrations = Config(str(project.ini), output_buffer=output)
    migrations.attributes["url"] = f"{url}://"
    alembic.upgrade(migrations, "head", sql=True)
    return one_line(output.getvalue())


def one_line(sql: str) -> str:
    return " ".join(sql.split())
