"""Contract R1, R3: rows are claimed by one short statement, on the database's clock, through the partial indexes."""

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from uuid import uuid4

import databases
import pytest
from sqlalchemy import Executable, insert, text
from support import Compose, Deposited, change_rows, effects, expire_leases, noting, outbox_row, rows

from mailroom import Mailroom
from mailroom.events import Kind
from mailroom.outbox.leases import Leases, Settlement, Verdict
from mailroom.persistence.claims import claims_for
from mailroom.persistence.claims.base import slots
from mailroom.persistence.tables import OutboxMessage

STATISTICS = {"sqlserver": "UPDATE STATISTICS outbox_messages"}
WITH_PLANS = [kind for kind in databases.KINDS if kind != "sqlserver"]


def statements(kind: str) -> dict[str, Executable]:
    claims = claims_for(kind)
    return {
        "claim": claims.claim(Kind.INTEGRATION, token=uuid4(), lease_seconds=60, limit=10),
        "take over": claims.take_over(Kind.INTEGRATION, token=uuid4(), lease_seconds=60),
        "renew": claims.renew([uuid4(), uuid4()], lease_seconds=60),
        "due": claims.due(),
    }


async def plan(mailroom: Mailroom, statement: Any) -> str:
    """What the database intends to do, on a table with many processed rows and few pending ones."""
    dialect = mailroom.database.engine.dialect
    sql = str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    explain = "EXPLAIN QUERY PLAN" if dialect.name == "sqlite" else "EXPLAIN"
    async with mailroom.database.connection() as connection:
        return "\n".join(str(tuple(row)) for row in await connection.exec_driver_sql(f"{explain} {sql}"))


async def fill(mailroom: Mailroom, processed: int, pending: int) -> None:
    now = datetime.now(UTC)
    for values in (
        [outbox_row(processed_on=now) for _ in range(processed)],
        [outbox_row(processed_on=None) for _ in range(pending)],
        [outbox_row(processed_on=None, ordering_key=f"key {number % 10}") for number in range(pending)],
    ):
        if values:
            async with mailroom.database.connection() as connection:
                await connection.execute(insert(OutboxMessage), values)


async def gather_statistics(mailroom: Mailroom) -> None:
    async with mailroom.database.connection() as connection:
        await connection.execute(text(STATISTICS.get(mailroom.database.kind, "ANALYZE")))


@pytest.mark.plans
@pytest.mark.parametrize("database_url", WITH_PLANS, indirect=True)
async def test_each_statement_goes_through_the_partial_indexes(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True)
    await fill(mailroom, processed=5_000, pending=200)
    await gather_statistics(mailroom)
    for name, statement in statements(mailroom.database.kind).items():
        planned = await plan(mailroom, statement)
        assert "ix_outbox_messages_pending" in planned, f"{name}: {planned}"
        for scan in ("Seq Scan on outbox_messages", "SCAN outbox_messages\n", "SCAN outbox_messages'"):
            assert scan not in planned, f"{name}: {planned}"
        if name == "claim":
            assert "ix_outbox_messages_ordering_key" in planned, planned
            assert "Sort" not in planned, planned


@pytest.mark.plans
@databases.on_sqlite
async def test_without_statistics_sqlite_writes_rows_by_their_ids(compose: Compose) -> None:
    """Nobody runs ANALYZE there."""
    mailroom = await compose(outbox_on=True)
    for name in ("claim", "take over", "renew"):
        first, *_ = (await plan(mailroom, statements("sqlite")[name])).splitlines()
        assert "outbox_messages USING INTEGER PRIMARY KEY" in first, name


@pytest.mark.plans
@pytest.mark.parametrize("database_url", WITH_PLANS, indirect=True)
async def test_a_pile_that_the_statistics_do_not_know_of_is_not_read_to_write_a_few_rows(compose: Compose) -> None:
    """Such as after an hour without a broker: the rows that were chosen are found by their ids."""
    mailroom = await compose(outbox_on=True)
    await fill(mailroom, processed=5_000, pending=0)
    await gather_statistics(mailroom)
    await fill(mailroom, processed=0, pending=200)
    by_id = {"sqlite": "INTEGER PRIMARY KEY", "postgres": "outbox_messages_pkey"}[mailroom.database.kind]
    for name in ("claim", "take over"):
        planned = await plan(mailroom, statements(mailroom.database.kind)[name])
        assert by_id in planned, f"{name}: {planned}"
        assert planned.count("ix_outbox_messages_pending") == 1, f"{name}: {planned}"


@pytest.mark.plans
@pytest.mark.parametrize("database_url", [kind for kind in databases.KINDS if kind == "postgres"], indirect=True)
async def test_the_first_row_of_a_key_is_looked_up_once_for_all_rows_of_the_key(compose: Compose) -> None:
    """Else a claim that has to pass fifty thousand rows of one key takes a second, not some hundredths of one."""
    mailroom = await compose(outbox_on=True)
    await fill(mailroom, processed=5_000, pending=200)
    await gather_statistics(mailroom)
    planned = await plan(mailroom, statements("postgres")["claim"])
    assert "Memoize" in planned, planned


@pytest.mark.plans
@pytest.mark.parametrize("database_url", WITH_PLANS, indirect=True)
async def test_a_claim_stops_at_its_limit_where_every_row_has_a_key(compose: Compose) -> None:
    """Else each claim reads and sorts all that is pending: ten times as long with ten thousand rows."""
    mailroom = await compose(outbox_on=True)
    keyed = [outbox_row(processed_on=None, ordering_key=f"key {number % 500}") for number in range(5_000)]
    async with mailroom.database.connection() as connection:
        await connection.execute(insert(OutboxMessage), keyed)
    await gather_statistics(mailroom)
    planned = await plan(mailroom, statements(mailroom.database.kind)["claim"])
    assert "Sort" not in planned, planned
    assert "TEMP B-TREE" not in planned, planned


@pytest.mark.parametrize("kind", databases.PRESENT)
def test_no_statement_of_a_relay_carries_the_time_of_its_process(kind: str) -> None:
    for name, statement in statements(kind).items():
        given = statement.compile().params.values()  # type: ignore[attr-defined]
        assert not [value for value in given if isinstance(value, datetime)], name


@pytest.mark.locks
async def test_an_event_that_was_numbered_early_and_committed_late_is_relayed(compose: Compose) -> None:
    """FAULTS F2: no watermark skips it. On SQLite nobody is numbered while another one writes."""
    mailroom = await compose(noting(), outbox_on=True)
    if mailroom.database.kind == "sqlite":
        await mailroom.publish(Deposited(amount=1))
        await mailroom.publish(Deposited(amount=2))
        await mailroom.drain()
    else:
        async with mailroom.sessions()() as early:
            first = outbox_row(event_type="bank.deposited", payload='{"amount": 1}')
            await early.execute(insert(OutboxMessage).values(first))
            async with mailroom.transaction() as late:
                mailroom.publish(late, Deposited(amount=2))
            await mailroom.drain()
            assert await effects(mailroom) == ["2"]
            await early.commit()
        assert [row.id for row in await rows(mailroom)] == [1, 2]
        await mailroom.drain()
    assert sorted(await effects(mailroom)) == ["1", "2"]


@pytest.mark.locks
async def test_relays_that_claim_at_the_same_time_get_different_rows(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True)
    for amount in range(40):
        await mailroom.publish(Deposited(amount=amount))
    leases = Leases(mailroom.database, lease_seconds=60)
    claimed = await asyncio.gather(*(leases.claim(Kind.INTEGRATION, 10) for _ in range(8)))
    ids = [row.id for batch in claimed for row in batch]
    assert len(ids) == len(set(ids))
    while more := await leases.claim(Kind.INTEGRATION, 10):
        ids += [row.id for row in more]
    assert sorted(ids) == [row.id for row in await rows(mailroom)]


@pytest.mark.locks
async def test_a_claim_never_leases_more_than_it_was_asked_for(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True)
    await fill(mailroom, processed=1, pending=300)
    leases = Leases(mailroom.database, lease_seconds=60)
    for limit in (1, 7, 50):
        assert len(await leases.claim(Kind.INTEGRATION, limit)) == limit
    held = [row for row in await rows(mailroom) if row.lock_token is not None]
    assert len(held) == 58


@pytest.mark.locks
@databases.on_servers
async def test_a_row_that_somebody_else_has_locked_is_skipped_and_not_waited_for(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True)
    for amount in range(2):
        await mailroom.publish(Deposited(amount=amount))
    async with mailroom.database.connection() as other:
        await other.execute(text("UPDATE outbox_messages SET attempts = attempts WHERE id = 1"))
        async with asyncio.timeout(10):
            claimed = await Leases(mailroom.database, lease_seconds=60).claim(Kind.INTEGRATION, 10)
    assert [row.id for row in claimed] == [2]


@databases.on_postgres
async def test_leases_and_delays_are_right_in_every_time_zone_of_the_server(compose: Compose) -> None:
    first = await compose()
    async with first.database.connection() as connection:
        name = (await connection.execute(text("SELECT current_database()"))).scalar_one()
        await connection.execute(text(f"ALTER DATABASE {name} SET timezone TO 'Asia/Kathmandu'"))
    mailroom = await compose(noting(), outbox_on=True)
    async with mailroom.database.connection() as connection:
        assert (await connection.execute(text("SHOW timezone"))).scalar_one() == "Asia/Kathmandu"
    before = datetime.now(UTC)
    await mailroom.publish(Deposited(amount=1), delay=timedelta(hours=1))
    await mailroom.publish(Deposited(amount=2))
    await mailroom.drain()
    assert await effects(mailroom) == ["2"]
    delayed, processed = await rows(mailroom)
    assert timedelta(minutes=59) < delayed.available_on - before < timedelta(minutes=61)
    assert processed.processed_on is not None
    assert abs(processed.processed_on - before) < timedelta(minutes=1)


@contextmanager
def a_client_whose_clock_is_wrong(by: timedelta, zone: str) -> Iterator[None]:
    """Whatever of mailroom asks this process for the time is told another one, in another time zone."""

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Wrong":
            return cls.fromtimestamp(time.time() + by.total_seconds(), tz)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", zone)
        for name, module in list(sys.modules.items()):
            if name.startswith("mailroom") and getattr(module, "datetime", None) is datetime:
                patch.setattr(module, "datetime", Wrong)
        time.tzset()
        try:
            yield
        finally:
            patch.undo()
            time.tzset()


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone of a process cannot be changed here")
async def test_the_servers_clock_decides_leases_and_backoff_whatever_its_clients_believe(compose: Compose) -> None:
    """Two clients whose clocks are ten minutes apart, in two time zones."""
    mailroom = await compose(outbox_on=True)
    leases = Leases(mailroom.database, lease_seconds=300)
    behind = timedelta(minutes=-5), "America/Los_Angeles"
    ahead = timedelta(minutes=5), "Asia/Kathmandu"
    start = datetime.now(UTC)
    with a_client_whose_clock_is_wrong(*behind):
        await mailroom.publish(Deposited(amount=1))
        (held,) = await leases.claim(Kind.INTEGRATION, 10)
    with a_client_whose_clock_is_wrong(*ahead):
        assert Deposited(amount=2).occurred_on - start > timedelta(minutes=4)
        assert await leases.take_over(Kind.INTEGRATION) is None
        assert await leases.claim(Kind.INTEGRATION, 10) == []
        await leases.renew([held.token])
    (row,) = await rows(mailroom)
    assert row.locked_until is not None
    assert timedelta(seconds=290) < row.locked_until - start < timedelta(seconds=360)

    failed = Settlement(claimed=held, verdict=Verdict.FAILED, attempts=1, error="no", retry_in_seconds=60)
    with a_client_whose_clock_is_wrong(*behind):
        assert await leases.write_back([failed]) == 0
    with a_client_whose_clock_is_wrong(*ahead):
        assert await leases.claim(Kind.INTEGRATION, 10) == []
    await change_rows(mailroom, available_on=mailroom.database.claims.later(-1))
    with a_client_whose_clock_is_wrong(*behind):
        assert len(await leases.claim(Kind.INTEGRATION, 10)) == 1
    await expire_leases(mailroom)
    with a_client_whose_clock_is_wrong(*behind):
        assert await leases.take_over(Kind.INTEGRATION) is not None


def test_ordering_keys_share_a_fixed_number_of_locks_that_everybody_takes_in_one_order() -> None:
    keys = [f"order {number}" for number in range(10_000)]
    assert slots(keys) == list(range(1024))
    assert slots(["b", "a"]) == slots(["a", "b", "a"])
