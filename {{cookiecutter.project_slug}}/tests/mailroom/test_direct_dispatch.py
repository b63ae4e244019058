"""Contract O2, O3 with the outbox off: events are handled after the commit, and nothing is stored."""

import asyncio
import logging
from typing import Any

import pytest
from support import Account, Compose, Deposited, Renamed, count, effect, effects, rows

from mailroom import Context, Handlers, IntegrationEvent, Mailroom
from mailroom.errors import OpenTransactionError

handlers = Handlers()


@handlers.on(Deposited)
async def note_deposit(event: Deposited, context: Context[Any]) -> None:
    if event.amount < 0:
        raise ValueError("a deposit below zero")
    effect(context, f"deposited {event.amount}")


@handlers.on(Renamed)
async def ping_pong(event: Renamed, context: Context[Any]) -> None:
    effect(context, event.new_name)
    context.publish(Renamed(new_name=event.new_name))


@pytest.fixture
async def mailroom(compose: Compose) -> Mailroom:
    return await compose(handlers, message_bus={"cascade_limit": 5})


async def test_handlers_have_run_when_the_commit_returns_and_nothing_was_written(mailroom: Mailroom) -> None:
    async with mailroom.sessions()() as session:
        account = Account()
        session.add(account)
        account.deposit(5)
        await session.commit()
        assert await effects(mailroom) == ["deposited 5"]
        account.deposit(6)
        await session.commit()
    assert await effects(mailroom) == ["deposited 5", "deposited 6"]
    assert await rows(mailroom) == []


async def test_nothing_is_dispatched_after_a_rollback_or_a_released_savepoint(mailroom: Mailroom) -> None:
    async with mailroom.sessions()() as session:
        async with session.begin_nested():
            mailroom.publish(session, Deposited(amount=5))
        assert await effects(mailroom) == []
        await session.rollback()
    assert await effects(mailroom) == []


async def test_the_connection_is_back_in_its_pool_when_handlers_run(compose: Compose) -> None:
    small = {"pool_size": 3, "max_overflow": 0, "pool_timeout_seconds": 1}
    mailroom = await compose(handlers, database=small, message_bus={"concurrency": 1})
    connect = mailroom.database.engine.connect
    async with connect(), connect(), mailroom.transaction() as session:
        mailroom.publish(session, Deposited(amount=5))
    assert await effects(mailroom) == ["deposited 5"]


async def test_a_failing_handler_is_logged_and_the_commit_stands(
    mailroom: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    async with mailroom.transaction() as session:
        account = Account()
        session.add(account)
        account.deposit(-1)
        account.deposit(2)
    assert await effects(mailroom) == ["deposited 2"]
    async with mailroom.reader() as session:
        assert await count(session, Account) == 1
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "not retried" in record.getMessage()
    assert record.event_type == "bank.deposited"


async def test_a_handler_that_meets_a_cancellation_of_something_else_has_failed(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    careless = Handlers()

    @careless.on(Deposited)
    async def wait_for_what_is_cancelled(event: Deposited, context: Context[Any]) -> None:
        if event.amount == 1:
            other = asyncio.get_running_loop().create_future()
            other.cancel()
            await other
        effect(context, str(event.amount))

    mailroom = await compose(careless)
    async with mailroom.transaction() as session:
        for amount in (1, 2):
            mailroom.publish(session, Deposited(amount=amount))
    assert await effects(mailroom) == ["2"]
    assert "handler failed; the event is not retried, because the outbox is off" in caplog.messages


async def test_only_publish_on_its_own_raises_what_a_handler_raised(mailroom: Mailroom) -> None:
    with pytest.raises(ValueError, match="below zero"):
        await mailroom.publish(Deposited(amount=-1))


async def test_events_that_handlers_raise_join_a_queue_that_is_bounded(
    mailroom: Mailroom, caplog: pytest.LogCaptureFixture
) -> None:
    await mailroom.publish(Renamed(new_name="ping"))
    assert await effects(mailroom) == ["ping"] * 5
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "message_bus.cascade_limit = 5" in str(record.exc_info)


async def test_handlers_get_a_decoded_copy(compose: Compose) -> None:
    seen: list[Deposited] = []
    keep = Handlers()

    @keep.on(Deposited)
    async def look(event: Deposited, context: Context[Any]) -> None:
        seen.append(event)

    mailroom = await compose(keep)
    event = Deposited(amount=1)
    await mailroom.publish(event)
    assert seen == [event]
    assert seen[0] is not event


async def test_publishing_on_its_own_inside_a_handler_is_refused(compose: Compose) -> None:
    impatient = Handlers()

    @impatient.on(Deposited)
    async def publish(event: Deposited, context: Context[Any]) -> None:
        await mailroom.publish(Renamed(new_name="x"))

    mailroom = await compose(impatient)
    with pytest.raises(OpenTransactionError, match=r"context\.publish"):
        await mailroom.publish(Deposited(amount=1))


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_a_commit_that_is_interrupted_while_handlers_run_loses_no_event(compose: Compose, how: str) -> None:
    entered, go = asyncio.Event(), asyncio.Event()
    slow = Handlers()

    @slow.on(Deposited)
    async def wait(event: Deposited, context: Context[Any]) -> None:
        entered.set()
        await go.wait()
        effect(context, str(event.amount))

    mailroom = await compose(slow)

    async def commit() -> None:
        async with mailroom.transaction() as session:
            mailroom.publish(session, Deposited(amount=1))
            mailroom.publish(session, Deposited(amount=2))

    if how == "cancelled":
        task = asyncio.create_task(commit())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await commit()
    go.set()
    await mailroom.close()
    assert await effects(mailroom) == ["1", "2"]


async def test_a_task_that_a_handler_left_behind_dispatches_for_itself(compose: Compose) -> None:
    left: list[asyncio.Task[None]] = []
    go = asyncio.Event()
    spawning = Handlers.merged([handlers])

    class Started(IntegrationEvent, name="bank.started"):
        pass

    @spawning.on(Started)
    async def spawn(event: Started, context: Context[Any]) -> None:
        async def later() -> None:
            await go.wait()
            async with mailroom.transaction() as session:
                mailroom.publish(session, Deposited(amount=7))

        left.append(asyncio.create_task(later()))

    mailroom = await compose(spawning)
    await mailroom.publish(Started())
    go.set()
    await left[0]
    assert await effects(mailroom) == ["deposited 7"]


async def test_the_inbox_records_each_handled_event_when_it_is_switched_on(compose: Compose) -> None:
    mailroom = await compose(handlers, inbox_on=True)
    event = Deposited(amount=1)
    await mailroom.publish(event)
    await mailroom.publish(event)
    assert await effects(mailroom) == ["deposited 1"]


async def test_what_is_not_handled_when_the_time_to_stop_is_over_is_undone_and_named(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    entered = asyncio.Event()
    slow = Handlers()

    @slow.on(Deposited)
    async def hang(event: Deposited, context: Context[Any]) -> None:
        effect(context, "hung")
        entered.set()
        await asyncio.Event().wait()

    mailroom = await compose(slow, shutdown_timeout_seconds=0.01)
    publishing = asyncio.create_task(mailroom.publish(Deposited(amount=1)))
    await entered.wait()
    await mailroom.close()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    assert await effects(mailroom) == []
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "lost" in record.getMessage()
    assert record.event_types == "bank.deposited"


async def test_who_comes_while_the_rest_is_waited_for_is_waited_for_as_well(compose: Compose) -> None:
    entered = {1: asyncio.Event(), 2: asyncio.Event()}
    go = {1: asyncio.Event(), 2: asyncio.Event()}
    waiting = Handlers()

    @waiting.on(Deposited)
    async def wait(event: Deposited, context: Context[Any]) -> None:
        entered[event.amount].set()
        await go[event.amount].wait()
        effect(context, str(event.amount))

    mailroom = await compose(waiting)
    publishing = []
    publishing.append(asyncio.create_task(mailroom.publish(Deposited(amount=1))))
    await entered[1].wait()
    closing = asyncio.create_task(mailroom.close())
    publishing.append(asyncio.create_task(mailroom.publish(Deposited(amount=2))))
    await entered[2].wait()
    go[1].set()
    await publishing[0]
    await asyncio.sleep(0)
    go[2].set()
    await asyncio.gather(closing, *publishing)
    assert await effects(mailroom) == ["1", "2"]
