"""How each kind of database is connected to, and what it says when something goes wrong (contract R1, T3)."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import databases
import pytest
from databases import WAITING, on_postgres, on_servers
from sqlalchemy import make_url, text, update
from sqlalchemy.exc import DBAPIError
from support import Account, Compose, Deposited, effect, effects, query, rows, until

from mailroom import Context, Handlers, Mailroom, Settings
from mailroom.errors import ConfigurationError, DatabaseUnavailableError
from mailroom.persistence import schema
from mailroom.persistence.database import create_engine
from mailroom.serialization import encode
from mailroom.testing import Harness

# Outside of a transaction, as SQL Server wants it.
KILL_THE_OTHERS = {
    "postgres": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "sqlserver": "DECLARE @kill nvarchar(max) = N''; "
    "SELECT @kill += N'KILL ' + CAST(session_id AS nvarchar(10)) + N'; ' FROM sys.dm_exec_sessions "
    "WHERE database_id = DB_ID() AND session_id <> @@SPID; EXEC (@kill)",
}

SLEEP = {"postgresql": "SELECT pg_sleep(1.5)", "mssql": "WAITFOR DELAY '00:00:01.5'"}
UPGRADE = """
import asyncio, json, sys
from mailroom import Settings
from mailroom.persistence import schema
from mailroom.persistence.database import create_engine
asyncio.run(schema.upgrade(create_engine(Settings(database=json.loads(sys.argv[1])).database)))
"""


@pytest.mark.skipif("sqlserver" in databases.KINDS or "sqlserver" not in databases.PRESENT, reason="it is tried")
def test_what_is_not_tried_is_said() -> None:
    pytest.skip("TEST_SQLSERVER_URL names no SQL Server; the contract was tried on the other databases")


def test_a_kind_that_the_project_was_made_without_is_refused_with_the_command_that_adds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mailroom.persistence.engines.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"names sqlite, .* copier update --data database=sqlite"):
        Mailroom(Settings(database={"url": "sqlite:///x.db"}))


def test_a_driver_that_cannot_be_loaded_is_refused_with_the_reason(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(database={"url": database_url})
    driver = settings.database.driver
    (tmp_path / f"{driver}.py").write_text("raise ImportError('libodbc.so.2: no such file')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, driver, raising=False)
    with pytest.raises(ConfigurationError, match=rf"{driver}.* cannot be loaded: libodbc\.so\.2.*README"):
        Mailroom(settings)


@on_servers
async def test_a_server_that_is_not_there_is_one_line_that_names_it_and_the_remedy(database_url: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        url = make_url(database_url).set(port=port, password="hunter2").render_as_string(hide_password=False)
        mailroom = Mailroom(Settings(database={"url": url}))
        with pytest.raises(DatabaseUnavailableError, match=rf"127\.0\.0\.1:{port}/.*docker compose up") as refused:
            await mailroom.ensure_migrated()
    assert "hunter2" not in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@on_servers
async def test_a_server_that_never_answers_is_given_up_within_the_connect_timeout(database_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = make_url(database_url).set(port=silent.getsockname()[1]).render_as_string(hide_password=False)
        settings = Settings(database={"url": url, "connect_timeout_seconds": 1})
        async with asyncio.timeout(10):
            with pytest.raises(DatabaseUnavailableError, match="no answer"):
                await Mailroom(settings).ensure_migrated()


@pytest.mark.reflection
@on_postgres
async def test_without_a_cache_of_statements_none_is_prepared_under_a_name(database_url: str) -> None:
    """A pooler may send the next transaction to a session in which nothing of the kind is prepared."""
    without = make_url(database_url).update_query_dict({"prepared_statement_cache_size": "0"})
    for url, is_prepared in ((make_url(database_url), True), (without, False)):
        engine = create_engine(Settings(database={"url": url.render_as_string(hide_password=False)}).database)
        async with engine.connect() as connection:
            for _ in range(2):
                names = (await connection.execute(text("SELECT name FROM pg_prepared_statements"))).scalars().all()
        await engine.dispose()
        assert bool(names) is is_prepared


@on_servers
async def test_a_database_that_does_not_exist_is_one_line(database_url: str) -> None:
    url = make_url(database_url).set(database="nobodys").render_as_string(hide_password=False)
    with pytest.raises(DatabaseUnavailableError, match="nobodys"):
        await Mailroom(Settings(database={"url": url})).ensure_migrated()


@pytest.mark.locks
@on_servers
@pytest.mark.parametrize(("bound", "value"), [("statement_timeout_seconds", 1), ("lock_timeout_seconds", 1)])
async def test_a_statement_and_the_wait_for_a_lock_are_bounded(compose: Compose, bound: str, value: float) -> None:
    mailroom = await compose(database={bound: value})
    async with mailroom.transaction() as session:
        session.add(Account())
    async with mailroom.transaction() as first:
        await first.execute(update(Account).values(balance=1))
        with pytest.raises(DBAPIError):
            async with mailroom.transaction() as second:
                await second.execute(update(Account).values(balance=2))


@pytest.mark.locks
@on_servers
async def test_migrations_take_the_time_that_they_need_and_their_turn(database_url: str, alembic_ini: Path) -> None:
    database = {"url": database_url, "statement_timeout_seconds": 1, "lock_timeout_seconds": 1}
    settings = Settings(database=database)
    slow = alembic_ini.parent / "migrations" / "versions" / "0002_slow.py"
    statement = SLEEP[make_url(database_url).get_backend_name()]
    slow.write_text(
        "from alembic import op\nrevision = '0002'\ndown_revision = '0001'\n\n"
        f"def upgrade():\n    op.execute({statement!r})\n\ndef downgrade():\n    pass\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "ALEMBIC_CONFIG": str(alembic_ini)}
    upgrades = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", UPGRADE, json.dumps(database), env=environment)
        for _ in range(3)
    ]
    assert [await upgrade.wait() for upgrade in upgrades] == [0, 0, 0]
    engine = create_engine(settings.database)
    assert await schema.current(engine) == ("0002",)
    await engine.dispose()


@pytest.mark.locks
@on_servers
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_events_are_stored_and_relayed_at_every_isolation_level(compose: Compose, level: str) -> None:
    handlers = Handlers()

    @handlers.on(Deposited)
    async def note(event: Deposited, context: Context[Any]) -> None:
        effect(context, str(event.amount))

    mailroom = await compose(handlers, outbox_on=True, inbox_on=True, database={"isolation_level": level})
    for amount in range(3):
        async with mailroom.transaction() as session:
            mailroom.publish(session, Deposited(amount=amount), ordering_key="anna")
            assert await session.run_sync(lambda plain: plain.connection().get_isolation_level()) == level
    await mailroom.drain()
    assert await effects(mailroom) == ["0", "1", "2"]


@pytest.mark.locks
@on_servers
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
async def test_two_deliveries_side_by_side_are_one_at_every_isolation_level(compose: Compose, level: str) -> None:
    """The second one waits for the first, before its handlers run."""
    handlers, started = Handlers(), []

    async def another_session_waits() -> bool:
        return await query(mailroom.database.engine, WAITING[mailroom.database.kind]) == [(1,)]

    @handlers.on(Deposited)
    async def note(event: Deposited, context: Context[Any]) -> None:
        started.append(event)
        await until(another_session_waits)
        effect(context, "once")

    mailroom = await compose(handlers, inbox_on=True, database={"isolation_level": level})
    sent = encode(Deposited(amount=1))
    outcomes = await asyncio.gather(*(mailroom.consumer.consume(sent, 1) for _ in range(2)))
    assert (sorted(outcomes), len(started)) == (["duplicate", "handled"], 1)
    assert await effects(mailroom) == ["once"]
    assert await mailroom.consumer.consume(sent, 1) == "duplicate"


@pytest.mark.locks
@on_postgres
async def test_messages_side_by_side_do_not_fail_for_each_other_where_transactions_are_serializable(
    compose: Compose,
) -> None:
    """Whoever looks for a row that is not there, and then adds it, keeps all others from adding theirs beside it."""
    handlers, all_are_in = Handlers(), asyncio.Barrier(8)

    @handlers.on(Deposited)
    async def note(event: Deposited, context: Context[Any]) -> None:
        await all_are_in.wait()

    mailroom = await compose(handlers, inbox_on=True, database={"isolation_level": "SERIALIZABLE"})
    sent = [encode(Deposited(amount=amount)) for amount in range(8)]
    outcomes = await asyncio.gather(*(mailroom.consumer.consume(one, 1) for one in sent))
    assert outcomes == ["handled"] * 8


@pytest.mark.locks
@on_postgres
async def test_a_handler_whose_transaction_the_database_gave_up_is_tried_again(compose: Compose) -> None:
    """SQL Server lets the other transaction wait for the lock of the first instead."""
    handlers = Handlers()

    @handlers.on(Deposited)
    async def deposit(event: Deposited, context: Context[Any]) -> None:
        mine = await context.session.get_one(Account, stored.id)
        if context.attempt == 1:
            async with mailroom.transaction() as another:
                (await another.get_one(Account, stored.id)).balance = 100
        mine.balance += event.amount

    mailroom = await compose(handlers, outbox_on=True, inbox_on=True, database={"isolation_level": "SERIALIZABLE"})
    async with mailroom.transaction() as session:
        session.add(stored := Account(balance=0))
    with Harness(mailroom) as harness:
        await mailroom.publish(Deposited(amount=5))
        await harness.relay_once()
        assert "concurrent update" in str((await rows(mailroom))[0].last_error)
        await harness.drain()
        await harness.assert_outbox(processed=1)
    async with mailroom.reader() as session:
        assert (await session.get_one(Account, stored.id)).balance == 105


@pytest.mark.reflection
@on_servers
async def test_a_connection_that_dies_before_the_commit_is_the_error_that_the_commit_raises(compose: Compose) -> None:
    mailroom, other = await compose(outbox_on=True), await compose()
    async with mailroom.sessions()() as session:
        await session.execute(text("SELECT 1"))
        mailroom.publish(session, Deposited(amount=1))
        async with other.database.listening() as connection:
            await connection.execute(text(KILL_THE_OTHERS[mailroom.database.kind]))
        with pytest.raises(DBAPIError):
            await session.commit()
    await mailroom.publish(Deposited(amount=2))
    assert len(await rows(mailroom)) == 1


@pytest.mark.reflection
@on_servers
async def test_connections_that_died_cost_one_retry_and_no_event(compose: Compose) -> None:
    handlers = Handlers()

    @handlers.on(Deposited)
    async def note(event: Deposited, context: Context[Any]) -> None:
        effect(context, str(context.attempt))
        if context.attempt == 1:
            async with other.database.listening() as connection:
                await connection.execute(text(KILL_THE_OTHERS[mailroom.database.kind]))

    mailroom, other = await compose(handlers, outbox_on=True, inbox_on=True), await compose(handlers)
    with Harness(mailroom) as harness:
        await mailroom.publish(Deposited(amount=1))
        await harness.drain()
        await harness.assert_outbox(processed=1)
    assert await effects(mailroom) == ["2"]
