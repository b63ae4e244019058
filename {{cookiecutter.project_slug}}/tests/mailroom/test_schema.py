"""How a database is migrated, and which databases a service refuses to start on (contract T4)."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path
from uuid import uuid4

import pytest
from alembic import command as alembic
from alembic import op
from alembic.config import Config
from databases import on_sqlite
from pydantic import SecretStr
from sqlalchemy import Column, Unicode, insert, inspect, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from support import outbox_row, query

from mailroom.errors import ConfigurationError, DatabaseUnavailableError, SchemaError
from mailroom.persistence import schema, steps
from mailroom.persistence.database import create_engine
from mailroom.persistence.tables import OutboxMessage
from mailroom.settings import DatabaseSettings

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

MIGRATIONS = Path(__file__).parents[2] / "migrations"
MOMENT = {"sqlite": "DATETIME", "postgresql": "TIMESTAMP WITH TIME ZONE", "mssql": "DATETIMEOFFSET"}

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

    def __init__(self, ini: Path, module: str, url: str) -> None:
        folder = ini.parent
        self.ini = ini
        self.versions = folder / "migrations" / "versions"
        self.database = DatabaseSettings(url=SecretStr(url))
        self.url = url
        self._module = module
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
def project(alembic_ini: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.syspath_prepend(alembic_ini.parent)  # alembic prepends it too; this takes it away again
    monkeypatch.delenv(schema.INI_VARIABLE, raising=False)
    return Project(alembic_ini, f"models_{uuid4().hex}", database_url)


@pytest.fixture
async def engine(project: Project) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(project.database)
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


# Migrating


@pytest.mark.reflection
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
    assert await query(engine, "SELECT id FROM parcels") == [(7,)]


@pytest.mark.reflection
async def test_a_migration_that_fails_leaves_nothing_half_done(
    engine: AsyncEngine, plain_engine: AsyncEngine, project: Project
) -> None:
    project.add_revision("broken", ["op.create_table('half', sa.Column('id', sa.Integer()))", "op.execute('nonsense')"])

    for either in (engine, plain_engine):
        with pytest.raises(DBAPIError, match="nonsense"):
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


@on_sqlite
async def test_rebuilding_a_table_keeps_the_rows_that_refer_to_it(engine: AsyncEngine, project: Project) -> None:
    await parcels_and_stamps(engine)
    project.add_revision("rebuild", REBUILD)

    await schema.upgrade(engine, ini=project.ini)

    assert await query(engine, "SELECT parcel_id FROM stamps") == [(7,)]
    assert await query(engine, "PRAGMA foreign_keys") == [(1,)]


@on_sqlite
async def test_a_migration_must_not_leave_rows_that_refer_to_nothing(engine: AsyncEngine, project: Project) -> None:
    await parcels_and_stamps(engine)
    project.add_revision("careless", ["op.execute('DELETE FROM parcels')"])

    with pytest.raises(SchemaError, match=r"1 of stamps to parcels.*nothing was changed"):
        await schema.upgrade(engine, ini=project.ini)

    assert await query(engine, "SELECT id FROM parcels") == [(7,)]
    assert await schema.current(engine) == ()


@pytest.mark.reflection
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


@pytest.mark.reflection
async def test_an_empty_revision_is_the_users_to_fill(engine: AsyncEngine, project: Project) -> None:
    project.use_models("parcels")

    path = await schema.revision(engine, "fill in the labels", autogenerate=False, ini=project.ini)

    assert "op.create" not in path.read_text(encoding="utf-8")
    assert len(schema.heads(ini=project.ini)) == 1
    await schema.upgrade(engine, ini=project.ini)


@pytest.mark.reflection
async def test_check_says_in_words_what_differs(engine: AsyncEngine, project: Project) -> None:
    project.use_models("parcels")
    await schema.upgrade(engine, ini=project.ini)
    moment = MOMENT[engine.dialect.name]
    await execute(
        engine,
        "CREATE TABLE parcels "
        f"(id INTEGER NOT NULL PRIMARY KEY, label VARCHAR(5), sent_on {moment} NOT NULL, note TEXT)",
        "CREATE INDEX ix_inbox_messages_extra ON inbox_messages (event_type)",
    )

    lines = await schema.check(engine, ini=project.ini)
    (of_type,) = [line for line in lines if line.startswith("modify type parcels.label: VARCHAR(length=5")]
    assert of_type.endswith(" in the database, String(length=20) in the model")
    assert {*lines} - {of_type} == {
        "remove column parcels.note",
        "modify nullable parcels.label: True in the database, False in the model",
        "add index ix_parcels_label(label) of parcels",
        "remove index ix_inbox_messages_extra(event_type) of inbox_messages",
    }


@pytest.mark.reflection
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

    assert asyncio.run(revisions(project)) == ("0001",)
    assert "CREATE TABLE outbox_messages" in written.getvalue()


async def revisions(project: Project) -> tuple[str, ...]:
    engine = create_engine(project.database)
    try:
        return await schema.current(engine)
    finally:
        await engine.dispose()


@pytest.mark.reflection
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


# What a version of mailroom changes in its tables


def note_step(number: int) -> steps.Step:
    return steps.Step(
        number=number,
        what=f"add note {number}",
        upgrade=lambda: op.add_column("outbox_messages", Column(f"note_{number}", Unicode(20))),
        downgrade=lambda: op.drop_column("outbox_messages", f"note_{number}"),
    )


@pytest.fixture
def newer(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mailroom that has changed its tables twice since the project was made."""
    last = max((step.number for step in steps.STEPS), default=1)
    monkeypatch.setattr(steps, "STEPS", (*steps.STEPS, note_step(last + 1), note_step(last + 2)))


@pytest.mark.reflection
@pytest.mark.usefixtures("newer")
async def test_a_migration_takes_each_step_of_mailroom_and_takes_it_back(engine: AsyncEngine, project: Project) -> None:
    """After the migrations that the project has; 0001 is as it was."""
    project.add_revision("ours", ["pass"])
    before = (project.versions / "0001_initial.py").read_bytes()
    await schema.upgrade(engine, ini=project.ini)
    missing = [step.revision for step in schema.needed(ini=project.ini).missing_steps]
    with pytest.raises(SchemaError) as refusal:
        await schema.ensure_migrated(engine, command="shop", ini=project.ini)
    assert len(missing) == 2
    assert str(refusal.value) == (
        f"the database {project.database.safe_url} is not ready: "
        + "; ".join(f"no migration takes mailroom's step {one[9:]}, add note {one[9:]}" for one in missing)
        + "; run: shop db revision --framework, then shop db upgrade"
    )

    written = schema.take_steps(ini=project.ini)
    assert [path.name for path in written] == [f"{one}_add_note_{one[9:]}.py" for one in missing]
    assert "Revises: ours" in written[0].read_text(encoding="utf-8")
    assert schema.take_steps(ini=project.ini) == []
    assert (project.versions / "0001_initial.py").read_bytes() == before

    await schema.upgrade(engine, ini=project.ini)
    await schema.ensure_migrated(engine, command="shop", ini=project.ini)
    notes = {one.replace("mailroom", "note") for one in missing}
    assert notes <= await columns_of_the_outbox(engine)
    await schema.downgrade(engine, "ours", ini=project.ini)
    assert not notes & await columns_of_the_outbox(engine)


async def columns_of_the_outbox(engine: AsyncEngine) -> set[str]:
    async with engine.connect() as connection:
        found = await connection.run_sync(lambda sync: inspect(sync).get_columns("outbox_messages"))
        return {column["name"] for column in found}


async def test_a_step_that_an_older_mailroom_does_not_know_is_refused(engine: AsyncEngine, project: Project) -> None:
    project.add_revision("mailroom_999", ["from mailroom.persistence import steps", "steps.upgrade(999)"])
    with pytest.raises(SchemaError, match=r"step 999 of mailroom's tables, which this mailroom does not know"):
        await schema.upgrade(engine, ini=project.ini)


def test_the_migrations_of_this_project_take_every_step_of_mailroom() -> None:
    """If not: run `db revision --framework`, read what it wrote, and apply it with `db upgrade`."""
    assert schema.needed(ini=MIGRATIONS.parent / "alembic.ini").missing_steps == ()


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
        f"the database {project.database.safe_url} is not ready: missing: inbox_messages, outbox_messages; "
        "it is not migrated, and this code needs 0001; run: shop db upgrade"
    )


async def test_a_migrated_database_is_accepted(engine: AsyncEngine, project: Project) -> None:
    await schema.upgrade(engine, ini=project.ini)

    await schema.ensure_migrated(engine, command="shop", ini=project.ini)


async def test_a_database_behind_the_code_is_refused(engine: AsyncEngine, project: Project) -> None:
    await schema.upgrade(engine, ini=project.ini)
    project.add_revision("newer", ["pass"])

    with pytest.raises(SchemaError, match=r"at migration 0001, and this code needs newer\; run: shop db upgrade"):
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
    with pytest.raises(SchemaError, match=r"missing: inbox_messages\; run: shop db upgrade"):
        await schema.ensure_migrated(engine, command="shop")


async def test_start_up_does_not_wait_for_a_writer(engine: AsyncEngine, project: Project) -> None:
    await schema.upgrade(engine, ini=project.ini)

    async with engine.connect() as writer:
        await writer.execute(insert(OutboxMessage).values(outbox_row()))
        await schema.ensure_migrated(engine, command="shop", ini=project.ini)


@on_sqlite
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


@on_sqlite
async def test_a_file_that_is_no_database_cannot_be_used(
    engine: AsyncEngine, plain_engine: AsyncEngine, project: Project
) -> None:
    file = project.ini.with_name("test.db")
    assert str(file) in project.url
    file.write_text("these are not the bytes of a database" * 50, encoding="utf-8")

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
