"""What `mailroom.testing` promises to those who test a module of their own."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from databases import KINDS, out_of_reach
from sqlalchemy import make_url
from support import Account, Compose, Deposited, Renamed, effect, effects

from mailroom import Context, Handlers, Mailroom, Reject, Settings
from mailroom.errors import DatabaseUnavailableError, HandlerTimeoutError
from mailroom.events import Event, Kind
from mailroom.persistence import schema
from mailroom.testing import Clock, Harness, Outcome, State, migrated, raised_by
from mailroom.testing.databases import HERE, fresh
from mailroom.testing.failures import SimulatedError
from mailroom.testing.plugin import fresh_database

handlers = Handlers()


@handlers.on(Deposited)
async def book(event: Deposited, context: Context[Any]) -> None:
    effect(context, f"attempt {context.attempt}: {event.amount}")


@pytest_asyncio.fixture
async def harness(compose: Compose) -> AsyncIterator[Harness]:
    with Harness(await compose(handlers, outbox_on=True, inbox_on=True)) as harness:
        yield harness


async def deposit(mailroom: Mailroom, amount: int, **how: Any) -> Deposited:
    event = Deposited(amount=amount)
    await mailroom.publish(event, **how)
    return event


def test_what_an_entity_raised_is_seen_without_a_session() -> None:
    account = Account()
    account.deposit(5)
    assert [event.model_dump() for event in raised_by(account)] == [{"amount": 5, "account": "anna"}]
    assert raised_by(Account()) == []


async def test_what_an_entity_raised_is_seen_in_a_session_and_not_what_another_one_did(harness: Harness) -> None:
    mine, other = Account(), Account()
    async with harness.mailroom.transaction() as session:
        session.add_all([mine, other])
        mine.deposit(1)
        other.deposit(2)
        assert [event.model_dump()["amount"] for event in raised_by(mine)] == [1]
    assert raised_by(mine) == []


@pytest.mark.parametrize("outbox_on", [True, False])
async def test_what_was_committed_is_collected_and_what_was_rolled_back_is_not(
    outbox_on: bool, compose: Compose
) -> None:
    mailroom = await compose(handlers, outbox_on=outbox_on)
    with Harness(mailroom) as harness:
        async with mailroom.sessions()() as session:
            mailroom.publish(session, Deposited(amount=1))
            await session.rollback()
        async with mailroom.transaction() as session:
            mailroom.publish(session, Deposited(amount=2))
            mailroom.publish(session, Renamed(new_name="bea"))
        await deposit(mailroom, 3)
        assert [event.amount for event in harness.raised(Deposited)] == [2, 3]
        assert len(harness.raised(Event)) == 3


async def test_an_event_that_is_delivered_twice_is_handled_once(harness: Harness) -> None:
    event = Deposited(amount=1)
    assert await harness.deliver(event) is Outcome.HANDLED
    await harness.assert_handled(event)
    assert await harness.deliver(event) is Outcome.DUPLICATE
    assert await effects(harness.mailroom) == ["attempt 1: 1"]


async def test_what_a_handler_raises_comes_out_of_the_delivery_and_its_work_is_undone(harness: Harness) -> None:
    event = Deposited(amount=1)
    with harness.failing(book, error=Reject("no such account")), pytest.raises(Reject, match="no such account"):
        await harness.deliver(event, attempt=3)
    assert await effects(harness.mailroom) == []
    await harness.assert_handled(event, times=0)


async def test_a_handler_fails_the_first_tries_and_then_does_its_work_once(harness: Harness) -> None:
    await deposit(harness.mailroom, 1)
    with harness.failing(book, times=2) as failures:
        assert await harness.drain() == 3
    assert failures.happened == 2
    assert await effects(harness.mailroom) == ["attempt 3: 1"]
    await harness.assert_outbox(processed=1)


async def test_a_handler_works_again_after_the_block(harness: Harness) -> None:
    with harness.failing(book), pytest.raises(SimulatedError):
        await harness.deliver(Deposited(amount=1))
    assert await harness.deliver(Deposited(amount=2)) is Outcome.HANDLED
    with harness.failing(book), pytest.raises(SimulatedError):
        await harness.deliver(Deposited(amount=3))


async def test_a_handler_that_was_to_fail_and_did_not_run_fails_the_test(harness: Harness) -> None:
    with (
        pytest.raises(AssertionError, match=r"was to fail 2 times, and did 0 times: it did not get to its end"),
        harness.failing(book, times=2),
    ):
        pass


async def test_a_handler_that_failed_by_itself_instead_is_the_cause(compose: Compose) -> None:
    broken = Handlers()

    @broken.on(Deposited)
    async def divide(event: Deposited, context: Context[Any]) -> None:
        raise ZeroDivisionError

    with Harness(await compose(broken, outbox_on=True)) as harness:
        await deposit(harness.mailroom, 1)
        with pytest.raises(AssertionError, match=r"it raised ZeroDivisionError") as wrong, harness.failing(divide):
            await harness.relay_once()
    assert isinstance(wrong.value.__cause__, ZeroDivisionError)


async def test_what_goes_wrong_in_the_block_is_told_rather_than_that_the_handler_did_not_run(harness: Harness) -> None:
    with pytest.raises(KeyError, match="mine"), harness.failing(book):
        raise KeyError("mine")


async def test_a_handler_that_was_told_to_fail_keeps_its_name(compose: Compose) -> None:
    slow = Handlers()

    @slow.on(Deposited, timeout_seconds=0.01)
    async def sleep(event: Deposited, context: Context[Any]) -> None:
        if event.amount:
            await asyncio.Event().wait()

    with Harness(await compose(slow)) as harness, harness.failing(sleep):
        with pytest.raises(HandlerTimeoutError, match=r"sleep ran longer than 0.01 seconds"):
            await harness.deliver(Deposited(amount=1))
        with pytest.raises(SimulatedError, match="sleep was told to fail"):
            await harness.deliver(Deposited(amount=0))


async def test_a_handler_is_told_to_fail_once_at_a_time(harness: Harness) -> None:
    with harness.failing(book):
        with pytest.raises(ValueError, match="lets book fail already"), harness.failing(book):
            pass
        with pytest.raises(SimulatedError):
            await harness.deliver(Deposited(amount=1))


async def test_what_is_no_handler_of_the_service_cannot_be_made_to_fail(harness: Harness) -> None:
    async def stranger(event: Deposited, context: Context[Any]) -> None: ...

    with pytest.raises(LookupError, match="stranger handles nothing here"), harness.failing(stranger):
        pass
    with pytest.raises(ValueError, match="at least once"), harness.failing(book, times=0):
        pass


async def test_the_relay_tries_each_due_row_once(harness: Harness) -> None:
    harness.clock.freeze()
    await deposit(harness.mailroom, 1)
    await deposit(harness.mailroom, 2)
    with harness.failing(book):
        assert await harness.relay_once() == 2
    assert await harness.relay_once() == 0
    assert len(await effects(harness.mailroom)) == 1
    await harness.assert_outbox(pending=1, processed=1)


async def test_a_frozen_clock_decides_when_events_happen_and_what_is_due(harness: Harness) -> None:
    midnight = datetime(2030, 1, 1, tzinfo=UTC)
    assert harness.clock.freeze(midnight) == midnight
    event = await deposit(harness.mailroom, 1, delay=timedelta(hours=1))
    assert event.occurred_on == midnight
    (row,) = await harness.outbox()
    assert (row.occurred_on, row.available_on) == (midnight, midnight + timedelta(hours=1))
    harness.clock.move(minutes=59)
    assert await harness.relay_once() == 0
    harness.clock.move(minutes=1)
    assert await harness.relay_once() == 1


async def test_leases_backoff_and_retention_go_by_the_clock(harness: Harness) -> None:
    harness.clock.freeze()
    await deposit(harness.mailroom, 1)
    await harness.relay_once()
    harness.clock.move(days=8)
    assert (await harness.mailroom.cleanup.run_once()).processed == 1


def test_a_clock_that_was_only_moved_goes_on() -> None:
    clock = Clock()
    clock.move(days=1)
    first = clock()
    assert first - datetime.now(UTC) > timedelta(hours=23)
    assert clock() >= first
    with pytest.raises(ValueError, match="no time zone"):
        clock.freeze(datetime(2030, 1, 1))


async def test_after_the_block_the_database_and_the_system_say_what_time_it_is(compose: Compose) -> None:
    mailroom = await compose(handlers, outbox_on=True)
    with Harness(mailroom) as harness:
        harness.clock.freeze(datetime(2030, 1, 1, tzinfo=UTC))
    assert Deposited(amount=1).occurred_on < harness.clock()
    await deposit(mailroom, 1)
    (row,) = await harness.outbox()
    assert row.available_on < harness.clock()


async def test_a_harness_inside_another_gives_back_what_it_found(compose: Compose) -> None:
    outer, inner = Harness(await compose(handlers)), Harness(await compose(handlers))
    with outer:
        outer.clock.freeze(datetime(2030, 1, 1, tzinfo=UTC))
        with inner:
            pass
        assert Deposited(amount=1).occurred_on == outer.clock()


async def test_after_the_block_nothing_is_collected_any_more(compose: Compose) -> None:
    harness = Harness(await compose(handlers))
    await deposit(harness.mailroom, 1)
    for amount in (2, 3):
        with harness:
            await deposit(harness.mailroom, amount)
    await deposit(harness.mailroom, 4)
    assert [event.amount for event in harness.raised(Deposited)] == [2, 3]


async def test_a_drain_lets_delays_and_retries_pass_until_nothing_is_pending(harness: Harness) -> None:
    await deposit(harness.mailroom, 1, delay=timedelta(days=300))
    with harness.failing(book, times=5):
        await harness.drain()
    await harness.assert_outbox(dead_lettered=1)
    assert await harness.drain() == 0


async def test_a_drain_waits_for_what_becomes_due_while_it_looks(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock runs on: between the relay and the look for what comes next, the last row may become due."""
    next_due = harness._next_due

    async def later() -> datetime | None:
        harness.clock.move(days=1)
        return await next_due()

    monkeypatch.setattr(harness, "_next_due", later)
    await deposit(harness.mailroom, 1)
    with harness.failing(book):
        assert await harness.drain() == 2


async def test_a_harness_within_another_one_gives_the_clock_back(harness: Harness) -> None:
    at = harness.clock.freeze(datetime(2030, 1, 1, tzinfo=UTC))
    with Harness(harness.mailroom) as inner:
        inner.clock.freeze(datetime(2040, 1, 1, tzinfo=UTC))
    event = await deposit(harness.mailroom, 1)
    (row,) = await harness.outbox()
    assert (event.occurred_on, row.available_on) == (at, at)
    assert inner.raised(Event) == []


async def test_two_harnesses_share_a_clock(harness: Harness, compose: Compose) -> None:
    with Harness(await compose(handlers), clock=harness.clock) as other:
        other.clock.freeze(datetime(2030, 1, 1, tzinfo=UTC))
        assert Deposited(amount=1).occurred_on == harness.clock()


async def test_a_harness_that_is_in_use_twice_or_not_at_all_is_refused(harness: Harness) -> None:
    with pytest.raises(RuntimeError, match="in use already"), harness:
        pass
    with pytest.raises(RuntimeError, match="not in use"):
        await Harness(harness.mailroom).drain()


async def test_a_drain_takes_over_what_another_relay_has_left_behind(harness: Harness) -> None:
    await deposit(harness.mailroom, 1)
    claims = harness.mailroom.database.claims
    async with harness.mailroom.database.connection() as connection:
        await connection.execute(claims.claim(Kind.INTEGRATION, token=uuid4(), lease_seconds=60, limit=1))
    await harness.drain()
    assert await effects(harness.mailroom) == ["attempt 2: 1"]


async def test_a_drain_without_end_is_an_error_that_shows_the_rows(
    compose: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mailroom.testing.harness.ROUNDS", 3)
    circle = Handlers()

    @circle.on(Deposited)
    async def again(event: Deposited, context: Context[Any]) -> None:
        context.publish(Deposited(amount=event.amount + 1), delay=timedelta(hours=1))

    mailroom = await compose(circle, outbox_on=True)
    with Harness(mailroom) as harness:
        await deposit(mailroom, 1)
        with pytest.raises(AssertionError, match=r"1 rows are still pending\n  1 bank.deposited"):
            await harness.drain()


async def test_a_wrong_expectation_of_the_outbox_shows_the_rows_and_their_errors(harness: Harness) -> None:
    await deposit(harness.mailroom, 1)
    with harness.failing(book, error=Reject("no such account")):
        await harness.relay_once()
    with pytest.raises(AssertionError) as wrong:
        await harness.assert_outbox(processed=1)
    assert str(wrong.value).splitlines() == [
        "the outbox holds 0 pending, 0 processed, 1 dead-lettered, not 0 pending, 1 processed, 0 dead-lettered",
        "  1 bank.deposited dead-lettered, 1 failed attempts, the last one: Reject: no such account",
    ]


async def test_a_long_outbox_is_shown_in_part(harness: Harness) -> None:
    for amount in range(23):
        await deposit(harness.mailroom, amount)
    with pytest.raises(AssertionError, match=r"and 3 more$"):
        await harness.assert_outbox()


async def test_rows_are_listed_by_event_the_oldest_first(harness: Harness) -> None:
    await deposit(harness.mailroom, 1)
    await harness.mailroom.publish(Renamed(new_name="bea"))
    assert [row.event_type for row in await harness.outbox()] == ["bank.deposited", "bank.renamed"]
    assert [row.state for row in await harness.outbox(Renamed)] == [State.PENDING]


async def test_a_message_that_was_not_handled_or_is_not_remembered_fails_the_test(
    harness: Harness, compose: Compose
) -> None:
    with pytest.raises(AssertionError, match=r"is in the inbox 0 times, not 1"):
        await harness.assert_handled(Deposited(amount=1))
    with Harness(await compose(handlers)) as without, pytest.raises(AssertionError, match="enable_inbox"):
        await without.assert_handled(Deposited(amount=1))


async def test_a_mailroom_is_migrated_and_closed(compose: Compose, alembic_ini: Path) -> None:
    mailroom = Mailroom((await compose()).settings)
    async with mailroom.database.engine.begin() as connection:
        for table in ("effects", "accounts", "inbox_messages", "outbox_messages"):
            await connection.exec_driver_sql(f"DROP TABLE {table}")
    async with migrated(mailroom, ini=alembic_ini) as ready:
        assert await schema.current(ready.database.engine) == ("0001",)
    assert ready.database.engine.pool.checkedin() == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", KINDS)
def test_a_database_for_a_test_is_empty_and_gone_afterwards(kind: str, tmp_path: Path) -> None:
    async def missing_tables(url: str) -> int:
        mailroom = Mailroom(Settings(database={"url": url}))
        try:
            return len(await schema.missing_tables(mailroom.database.engine))
        finally:
            await mailroom.close()

    with fresh_database(kind, tmp_path) as url, fresh(kind, tmp_path / "..") as other:
        assert url != other
        assert asyncio.run(missing_tables(url)) == asyncio.run(missing_tables(other)) == 2
    if kind == "sqlite":
        assert str(tmp_path) in url
    else:
        with pytest.raises(DatabaseUnavailableError):
            asyncio.run(missing_tables(url))


@pytest.mark.parametrize("kind", HERE)
def test_without_a_server_a_test_is_skipped_with_the_reason_and_fails_if_the_server_is_required(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variable = f"TEST_{kind.upper()}_URL"
    monkeypatch.setenv(variable, out_of_reach(make_url(HERE[kind]).set(password="hunter2").render_as_string(False)))
    monkeypatch.delenv("TEST_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match=f"no {kind}: start the server, or let {variable} name one") as said:
        fresh_database(kind, tmp_path)
    assert "hunter2" not in str(said.value)
    monkeypatch.setenv("TEST_REQUIRE", f"rabbitmq,{kind}")
    with pytest.raises(pytest.fail.Exception, match=variable):
        fresh_database(kind, tmp_path)
