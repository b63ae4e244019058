"""Several databases in one service: each has both tables and a relay of its own, and none stops another (T5, I6)."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import databases
import pytest
import pytest_asyncio
import support
from databases import out_of_reach
from pydantic import SecretStr
from sqlalchemy import event, select
from support import Account, Deposited, Effect, effect, noting
from typer.testing import CliRunner

from mailroom import Context, Handlers, Mailroom, Settings
from mailroom.cli import create_cli
from mailroom.errors import CaptureError, ConfigurationError, DatabaseUnavailableError, SchemaError
from mailroom.persistence import schema
from mailroom.persistence.tables import InboxMessage, OutboxMessage
from mailroom.testing import Harness, migrated
from mailroom.testing.plugin import fresh_database

Compose = Callable[..., Mailroom]


@pytest.fixture(params=databases.KINDS)
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    (tmp_path / "second").mkdir()
    with (
        fresh_database(request.param, tmp_path) as first,
        fresh_database(request.param, tmp_path / "second") as second,
    ):
        yield first, second


@pytest_asyncio.fixture
async def compose(urls: tuple[str, str]) -> AsyncIterator[Compose]:
    made: list[Mailroom] = []

    def compose(*handlers: Handlers, inbox_in: str = "default", **sections: Any) -> Mailroom:
        settings = Settings(
            database={"url": urls[0]},
            data_sources={"billing": {"url": urls[1]}},
            message_bus={"enable_outbox": True, "enable_inbox": True, **sections.pop("message_bus", {})},
            outbox={"data_source": inbox_in, **sections.pop("outbox", {})},
            **sections,
        )
        made.append(Mailroom(settings, handlers=handlers, command="bank"))
        return made[-1]

    yield compose
    for mailroom in made:
        await mailroom.close()


@pytest_asyncio.fixture
async def tables(compose: Compose) -> None:
    for source in compose().data_sources.values():
        await support.create_all(source.database)


async def found(mailroom: Mailroom, source: str, column: Any) -> list[Any]:
    async with mailroom.reader(source) as session:
        return list((await session.scalars(select(column))).all())


@pytest.mark.usefixtures("tables")
class TestEvents:
    async def test_an_event_is_stored_where_it_was_raised_and_handled_where_the_inbox_is(
        self, compose: Compose
    ) -> None:
        mailroom = compose(noting())
        with Harness(mailroom) as harness:
            async with mailroom.transaction("billing") as session:
                session.add(account := Account())
                account.deposit(7)
            assert await found(mailroom, "billing", OutboxMessage.event_type) == ["bank.deposited"]
            assert await found(mailroom, "default", OutboxMessage.event_type) == []
            await harness.drain()
        assert await found(mailroom, "default", Effect.what) == ["7"]
        assert await found(mailroom, "billing", Effect.what) == []
        assert len(await found(mailroom, "default", InboxMessage.message_id)) == 1

    async def test_outbox_data_source_names_the_one_that_holds_the_inbox(self, compose: Compose) -> None:
        mailroom = compose(noting(), inbox_in="billing")
        await mailroom.publish(Deposited(amount=1))
        await mailroom.drain()
        assert await found(mailroom, "billing", Effect.what) == ["1"]
        assert len(await found(mailroom, "billing", InboxMessage.message_id)) == 1
        assert await found(mailroom, "default", InboxMessage.message_id) == []

    async def test_what_a_handler_writes_to_another_source_than_the_inboxs_is_at_least_once(
        self, compose: Compose
    ) -> None:
        handlers = Handlers()

        @handlers.on(Deposited)
        async def pay(event: Deposited, context: Context[Any]) -> None:
            async with mailroom.transaction("billing") as session:
                session.add(Effect(message_id=context.message_id, what="paid"))
            effect(context, "noted")
            if context.attempt == 1:
                raise ConnectionError("died after paying")

        mailroom = compose(handlers)
        with Harness(mailroom) as harness:
            await mailroom.publish(Deposited(amount=1))
            await harness.drain()
        assert await found(mailroom, "default", Effect.what) == ["noted"]
        assert await found(mailroom, "billing", Effect.what) == ["paid", "paid"]

    async def test_with_the_outbox_off_events_of_every_source_are_dispatched(self, compose: Compose) -> None:
        mailroom = compose(noting(), message_bus={"enable_outbox": False})
        async with mailroom.transaction("billing") as session:
            mailroom.publish(session, Deposited(amount=3))
        assert await found(mailroom, "default", Effect.what) == ["3"]

    async def test_a_session_that_is_bound_to_two_sources_is_refused(self, compose: Compose) -> None:
        mailroom = compose(noting())
        billing = mailroom.data_source("billing").database.engine
        async with mailroom.sessions()(binds={Effect: billing}) as session:
            session.add(account := Account())
            await session.flush()
            account.deposit(1)
            session.add(Effect(message_id=uuid4()))
            with pytest.raises(CaptureError, match="One session is one source"):
                await session.commit()
        for source in mailroom.data_sources:
            assert await found(mailroom, source, OutboxMessage.id) == []
            assert await found(mailroom, source, Account.id) == []

    async def test_a_relay_runs_for_each(
        self, compose: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        mailroom = compose(noting())
        async with mailroom.running():
            assert mailroom.posture.services == (
                "OutboxProcessor",
                "OutboxProcessor (billing)",
                "OutboxCleanup",
                "OutboxCleanup (billing)",
            )
            started = [service.name for service in mailroom.services]
            assert sorted(started) == sorted(mailroom.posture.services)
            assert started.index("OutboxCleanup (billing)") < started.index("OutboxProcessor")  # and stopped after it
            async with mailroom.transaction("billing") as session:
                mailroom.publish(session, Deposited(amount=1))
            await mailroom.publish(Deposited(amount=2))

            async def both() -> bool:
                return sorted(await found(mailroom, "default", Effect.what)) == ["1", "2"]

            await support.until(both)

    async def test_the_outbox_of_one_source_is_seen_and_repaired_alone(self, compose: Compose) -> None:
        mailroom = compose()
        async with mailroom.transaction("billing") as session:
            mailroom.publish(session, Deposited(amount=1))
        assert (await mailroom.data_source("billing").outbox.stats()).pending == 1
        assert (await mailroom.outbox.stats()).pending == 0


async def test_an_unknown_data_source_is_an_error_that_names_those_there_are(compose: Compose) -> None:
    mailroom = compose()
    with pytest.raises(ConfigurationError, match=r"no data source 'biling'; there are: default, billing"):
        mailroom.sessions("biling")


@pytest.mark.usefixtures("tables")
async def test_a_source_that_goes_away_stops_no_other_and_its_relay_goes_on_when_it_is_back(
    compose: Compose, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mailroom = compose(noting(), outbox={"polling_interval_seconds": 0.05})
    billing = mailroom.data_source("billing").database
    async with mailroom.transaction("billing") as session:
        mailroom.publish(session, Deposited(amount=1))

    def is_away(*_: object) -> None:
        raise ConnectionRefusedError("billing is away")

    event.listen(billing.engine.sync_engine, "begin", is_away)
    for source in mailroom.data_sources.values():
        await source.processor.start()
    await mailroom.publish(Deposited(amount=2))

    async def handled(*amounts: str) -> bool:
        return sorted(await found(mailroom, "default", Effect.what)) == sorted(amounts)

    await support.until(lambda: handled("2"))
    assert any("billing is away" in (record.exc_text or str(record.exc_info)) for record in caplog.records)
    event.remove(billing.engine.sync_engine, "begin", is_away)
    await support.until(lambda: handled("1", "2"))
    for source in mailroom.data_sources.values():
        await source.processor.stop()


@pytest.mark.usefixtures("tables")
async def test_a_source_that_is_away_at_the_start_is_a_warning_unless_nothing_goes_without_it(
    compose: Compose, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = "billing"

    async def ensure_migrated(engine: object, *, command: str, source: str) -> None:
        if source == away:
            raise DatabaseUnavailableError(f"{source} is away")

    async def start(mailroom: Mailroom) -> None:
        async with mailroom.running():
            pass

    monkeypatch.setattr("mailroom.host.ensure_migrated", ensure_migrated)
    await start(compose())
    (record,) = [record for record in caplog.records if record.message == "data source unavailable"]
    assert record.levelname == "WARNING"
    with pytest.raises(DatabaseUnavailableError):
        await start(compose(inbox_in="billing"))
    away = "default"
    with pytest.raises(DatabaseUnavailableError):
        await start(compose())


class TestMigrations:
    """Each has a folder of its own; one command migrates all."""

    @pytest.fixture
    def run(self, urls: tuple[str, str], alembic_ini: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        monkeypatch.chdir(alembic_ini.parent)
        settings = Settings(
            database={"url": urls[0]}, data_sources={"billing": {"url": urls[1]}}, message_bus={"enable_outbox": True}
        )
        self.settings = settings
        app = create_cli("bank", settings=lambda: settings, mailroom=lambda: Mailroom(settings, command="bank"))
        return lambda *arguments: CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})

    def test_a_source_without_migrations_is_said_with_the_command_that_writes_the_first(
        self, run: Callable[..., Any]
    ) -> None:
        refused = run("db", "upgrade")
        assert refused.exit_code == 1
        assert "data source billing has no migrations" in refused.stderr
        assert "db init billing" in refused.stderr

    def test_init_writes_the_first_migration_once_and_upgrade_applies_it_everywhere(
        self, run: Callable[..., Any], alembic_ini: Path
    ) -> None:
        written = run("db", "init", "billing")
        assert "migrations/billing/versions/0001_initial.py" in written.stdout
        assert run("db", "init", "billing").exit_code == 1
        (alembic_ini.parent / "migrations/versions/0002_mine.py").write_text(
            "revision = '0002'\ndown_revision = '0001'\n\ndef upgrade():\n    pass\n\ndef downgrade():\n    pass\n"
        )
        assert run("db", "upgrade").stdout.splitlines() == ["at 0002", "billing: at 0001"]
        assert run("db", "check").stdout == "models and database agree\n"
        assert json.loads(run("db", "current", "--data-source", "billing", "--json").stdout) == {
            "current": ["0001"],
            "heads": ["0001"],
        }
        assert run("db", "revision", "-m", "more", "--empty", "--data-source", "billing").exit_code == 0
        assert len(list((alembic_ini.parent / "migrations/billing/versions").glob("*.py"))) == 2
        assert run("db", "downgrade", "base", "--data-source", "billing").stdout.startswith("billing: empty")
        assert run("db", "current").stdout == "database: 0002; newest migration: 0002\n"

    def test_commands_look_at_one_source_and_doctor_at_all(self, run: Callable[..., Any]) -> None:
        run("db", "init", "billing")
        run("db", "upgrade")
        assert run("outbox", "stats", "--data-source", "billing").exit_code == 0
        refused = run("outbox", "list", "--data-source", "biling")
        assert (refused.exit_code, "there are: default, billing" in refused.stderr) == (2, True)
        examined = json.loads(run("doctor", "--json").stdout)
        assert examined["healthy"]
        assert {"schema", "schema (billing)", "pending (billing)"} <= {check["name"] for check in examined["checks"]}
        assert "data sources: default" in run("posture").stdout

    @pytest.mark.parametrize("command", ["stats", "drain", "list", "show 1", "replay --all", "purge"])
    def test_a_source_that_is_away_is_a_message_of_the_commands_that_need_it_and_of_no_other(
        self, run: Callable[..., Any], urls: tuple[str, str], command: str
    ) -> None:
        run("db", "init", "billing")
        run("db", "upgrade")
        self.settings.data_sources["billing"] = self.settings.data_sources["billing"].model_copy(
            update={"url": SecretStr(out_of_reach(urls[1]))}
        )
        refused = run("outbox", *command.split(), "--data-source", "billing")
        assert (refused.exit_code, refused.exception.__class__) == (1, SystemExit)
        assert "cannot be used" in refused.stderr
        if command != "show 1":  # there is none
            assert run("outbox", *command.split(), "--data-source", "default").exit_code == 0

    async def test_the_start_asks_each_source_for_its_own_migrations(
        self, run: Callable[..., Any], compose: Compose, alembic_ini: Path
    ) -> None:
        schema.init("billing")
        await schema.upgrade(compose().database.engine)
        with pytest.raises(SchemaError, match="missing: inbox_messages, outbox_messages"):
            await compose().ensure_migrated()
        async with migrated(compose(), ini=alembic_ini) as mailroom:
            await mailroom.ensure_migrated()
