"""Contract I1-I5, I8, I9: one message, one session, one commit, and effects once."""

import asyncio
import logging
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import databases
import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from support import Account, Compose, Deposited, Effect, Renamed, effect, effects, inbox_ids, note, query, rows, until

from mailroom import Context, Handlers, InboxStore, Reject
from mailroom.envelope import Message
from mailroom.errors import HandlerTimeoutError, RolledBackError, UndecodableError, UnknownEventError
from mailroom.messaging.consumer import Outcome
from mailroom.serialization import encode


def message(amount: int = 1) -> Message:
    return encode(Deposited(amount=amount))


def handling(*functions: Any, **options: Any) -> Handlers:
    handlers = Handlers()
    for function in functions:
        handlers.on(Deposited, **options)(function)
    return handlers


async def first(event: Deposited, context: Context[Any]) -> None:
    effect(context, "first")


async def fail(event: Deposited, context: Context[Any]) -> None:
    raise ValueError("no luck")


async def commit_for_itself(event: Deposited, context: Context[Any]) -> None:
    effect(context, "committed")
    await context.session.commit()


async def test_the_row_the_changes_and_the_events_are_one_transaction(compose: Compose) -> None:
    async def second(event: Deposited, context: Context[Any]) -> None:
        assert (await context.session.scalars(select(Effect.what))).all() == ["first"]
        effect(context, "second")
        context.publish(Renamed(new_name="x"))

    mailroom = await compose(handling(first, second), outbox_on=True, inbox_on=True)
    sent = message()
    assert await mailroom.consumer.consume(sent, 1) is Outcome.HANDLED
    assert await effects(mailroom) == ["first", "second"]
    assert await inbox_ids(mailroom) == [sent.message_id]
    assert [row.event_type for row in await rows(mailroom)] == ["bank.renamed"]


async def test_when_a_later_handler_fails_nothing_of_the_message_stays(compose: Compose) -> None:
    async def publish(event: Deposited, context: Context[Any]) -> None:
        context.publish(Renamed(new_name="x"))
        await context.session.flush()

    mailroom = await compose(handling(first, publish, fail), outbox_on=True, inbox_on=True)
    with pytest.raises(ValueError, match="no luck"):
        await mailroom.consumer.consume(message(), 1)
    assert await effects(mailroom) == []
    assert await inbox_ids(mailroom) == []
    assert await rows(mailroom) == []


async def test_a_duplicate_is_skipped_and_acknowledged(compose: Compose) -> None:
    called: list[int] = []

    async def call(event: Deposited, context: Context[Any]) -> None:
        called.append(event.amount)

    mailroom = await compose(handling(first, call), inbox_on=True)
    sent = message()
    assert [await mailroom.consumer.consume(sent, 1) for _ in range(3)] == ["handled", "duplicate", "duplicate"]
    assert await effects(mailroom) == ["first"]
    assert called == [1], "its handlers are not even entered again"


async def test_without_the_inbox_every_delivery_is_handled(compose: Compose) -> None:
    mailroom = await compose(handling(first), inbox_on=False)
    sent = message()
    assert [await mailroom.consumer.consume(sent, 1) for _ in range(2)] == ["handled", "handled"]
    assert await effects(mailroom) == ["first", "first"]


@pytest.mark.locks
@pytest.mark.parametrize("reads_first", [False, True])
async def test_two_deliveries_side_by_side_have_their_effects_once(compose: Compose, reads_first: bool) -> None:
    """In the handler, or where a second insert waits for the first, one there and one in the database."""
    barrier = asyncio.Barrier(2)

    async def meet(event: Deposited, context: Context[Any]) -> None:
        if mailroom.database.claims.waits_on_unique_insert:
            await until(another_session_waits)
        else:
            await barrier.wait()
        if reads_first:
            await context.session.scalars(select(Effect))
        effect(context, "once")

    async def another_session_waits() -> bool:
        (row,) = await query(mailroom.database.engine, databases.WAITING[mailroom.database.kind])
        return row == (1,)

    mailroom = await compose(handling(meet), inbox_on=True)
    sent = message()
    outcomes = await asyncio.gather(*(mailroom.consumer.consume(sent, 1) for _ in range(2)))
    assert sorted(outcomes) == ["duplicate", "handled"]
    assert await effects(mailroom) == ["once"]
    assert await inbox_ids(mailroom) == [sent.message_id]


async def test_a_duplicate_that_loses_before_its_handlers_run_is_a_duplicate(compose: Compose) -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    async def wait(event: Deposited, context: Context[Any]) -> None:
        entered.set()
        await go.wait()
        effect(context, "once")

    mailroom = await compose(handling(wait), inbox_on=True)
    mailroom.database.claims.waits_on_unique_insert = True
    sent = message()
    winner = asyncio.create_task(mailroom.consumer.consume(sent, 1))
    await entered.wait()
    loser = asyncio.create_task(mailroom.consumer.consume(sent, 1))

    async def has_looked() -> bool:
        return mailroom.database.engine.pool.checkedout() == 2

    await until(has_looked)
    go.set()
    assert (await winner, await loser) == (Outcome.HANDLED, Outcome.DUPLICATE)
    assert await effects(mailroom) == ["once"]


async def test_a_handlers_own_integrity_error_is_never_taken_for_a_duplicate(compose: Compose) -> None:
    async def break_the_foreign_key(event: Deposited, context: Context[Any]) -> None:
        context.session.add(Effect(message_id=context.message_id, account_id=uuid4()))

    mailroom = await compose(handling(break_the_foreign_key), inbox_on=True)
    with pytest.raises(IntegrityError):
        await mailroom.consumer.consume(message(), 1)
    assert await inbox_ids(mailroom) == []


async def test_a_handler_that_commits_for_itself_commits_the_row_with_it(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    mailroom = await compose(handling(commit_for_itself, fail), inbox_on=True)
    sent = message()
    with pytest.raises(ValueError, match="no luck"):
        await mailroom.consumer.consume(sent, 1)
    assert await inbox_ids(mailroom) == [sent.message_id]
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "remaining handlers will never run" in record.getMessage()
    assert await mailroom.consumer.consume(sent, 2) is Outcome.DUPLICATE
    assert await effects(mailroom) == ["committed"]


async def test_cancellation_after_a_handler_committed_for_itself_says_what_will_never_run(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    entered = asyncio.Event()

    async def hang(event: Deposited, context: Context[Any]) -> None:
        entered.set()
        await asyncio.Event().wait()

    mailroom = await compose(handling(commit_for_itself, hang), inbox_on=True)
    task = asyncio.create_task(mailroom.consumer.consume(message(), 1))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "remaining handlers will never run" in record.getMessage()


async def test_a_handler_that_commits_for_itself_and_is_the_last_is_handled(compose: Compose) -> None:
    mailroom = await compose(handling(first, commit_for_itself), inbox_on=True)
    sent = message()
    assert await mailroom.consumer.consume(sent, 1) is Outcome.HANDLED
    assert await inbox_ids(mailroom) == [sent.message_id]
    assert await effects(mailroom) == ["first", "committed"]


@pytest.mark.parametrize("inbox_on", [True, False])
async def test_a_handler_that_rolls_everything_back_fails_the_message(compose: Compose, inbox_on: bool) -> None:
    async def roll_back(event: Deposited, context: Context[Any]) -> None:
        await context.session.rollback()

    mailroom = await compose(handling(first, roll_back), inbox_on=inbox_on)
    with pytest.raises(RolledBackError, match="begin_nested"):
        await mailroom.consumer.consume(message(), 1)
    assert await inbox_ids(mailroom) == []


@pytest.mark.parametrize("inbox_on", [True, False])
async def test_a_handler_that_closes_the_session_fails_the_message(compose: Compose, inbox_on: bool) -> None:
    async def close(event: Deposited, context: Context[Any]) -> None:
        async with context.session:
            pass

    mailroom = await compose(handling(first, close), inbox_on=inbox_on)
    with pytest.raises(RolledBackError, match="close rolled back or closed"):
        await mailroom.consumer.consume(message(), 1)
    assert await inbox_ids(mailroom) == []


@pytest.mark.parametrize("ended_well", ["commit", "savepoint"])
async def test_what_ended_well_before_does_not_excuse_a_rollback(compose: Compose, ended_well: str) -> None:
    async def roll_back(event: Deposited, context: Context[Any]) -> None:
        if ended_well == "commit":
            await context.session.commit()
        else:
            async with context.session.begin_nested():
                effect(context, "in the savepoint")
        effect(context, "lost")
        await context.session.flush()
        await context.session.rollback()

    mailroom = await compose(handling(roll_back))
    with pytest.raises(RolledBackError):
        await mailroom.consumer.consume(message(), 1)


async def test_a_handler_that_empties_the_session_does_not_empty_the_inbox(compose: Compose) -> None:
    async def expunge(event: Deposited, context: Context[Any]) -> None:
        context.session.expunge_all()

    async def commit(event: Deposited, context: Context[Any]) -> None:
        await context.session.commit()

    for functions in ([expunge], [expunge, commit]):
        mailroom = await compose(handling(*functions), inbox_on=True)
        sent = message()
        assert await mailroom.consumer.consume(sent, 1) is Outcome.HANDLED
        assert sent.message_id in await inbox_ids(mailroom)


@databases.on_sqlite
async def test_a_commit_after_the_session_was_emptied_is_no_record(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the row is flushed at once, it is no longer in the session's hands, and is committed."""

    async def expunge_and_commit(event: Deposited, context: Context[Any]) -> None:
        context.session.expunge_all()
        await context.session.commit()

    mailroom = await compose(handling(expunge_and_commit, fail), inbox_on=True)
    sent = message()
    for _ in range(2):
        with pytest.raises(ValueError, match="no luck"):
            await mailroom.consumer.consume(sent, 1)
    assert "will never run" not in caplog.text


async def test_a_handler_may_roll_back_its_own_savepoint(compose: Compose) -> None:
    async def try_and_undo(event: Deposited, context: Context[Any]) -> None:
        savepoint = await context.session.begin_nested()
        effect(context, "undone")
        await savepoint.rollback()

    mailroom = await compose(handling(first, try_and_undo), inbox_on=True)
    assert await mailroom.consumer.consume(message(), 1) is Outcome.HANDLED
    assert await effects(mailroom) == ["first"]


async def test_a_savepoint_that_a_handler_released_is_no_commit(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    async def keep(event: Deposited, context: Context[Any]) -> None:
        async with context.session.begin_nested():
            effect(context, "kept")

    mailroom = await compose(handling(keep, fail), inbox_on=True)
    sent = message()
    with pytest.raises(ValueError, match="no luck"):
        await mailroom.consumer.consume(sent, 1)
    assert caplog.messages == []
    assert await effects(mailroom) == []
    assert await inbox_ids(mailroom) == []


async def test_a_handlers_timeout_is_a_failure_that_names_it(compose: Compose) -> None:
    async def hang(event: Deposited, context: Context[Any]) -> None:
        effect(context, "hung")
        await asyncio.Event().wait()

    mailroom = await compose(handling(hang, timeout_seconds=0.01), inbox_on=True)
    with pytest.raises(HandlerTimeoutError, match=r"hang ran longer than 0\.01 seconds"):
        await mailroom.consumer.consume(message(), 1)
    assert await effects(mailroom) == []


async def test_a_timeout_that_the_handler_met_itself_stays_its_own_error(compose: Compose) -> None:
    async def call_out(event: Deposited, context: Context[Any]) -> None:
        raise TimeoutError("the shop is closed")

    mailroom = await compose(handling(call_out))
    with pytest.raises(TimeoutError, match="the shop is closed"):
        await mailroom.consumer.consume(message(), 1)


async def test_cancellation_undoes_the_attempt(compose: Compose) -> None:
    entered = asyncio.Event()

    async def hang(event: Deposited, context: Context[Any]) -> None:
        effect(context, "hung")
        await context.session.flush()
        entered.set()
        await asyncio.Event().wait()

    mailroom = await compose(handling(hang), inbox_on=True)
    task = asyncio.create_task(mailroom.consumer.consume(message(), 1))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await effects(mailroom) == []
    assert await inbox_ids(mailroom) == []


async def test_a_known_event_that_nothing_handles_is_acknowledged_and_recorded(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailroom")
    mailroom = await compose(inbox_on=True, events=[Deposited])
    sent = message()
    assert await mailroom.consumer.consume(sent, 1) is Outcome.UNHANDLED
    assert await inbox_ids(mailroom) == [sent.message_id]
    assert [record.getMessage() for record in caplog.records] == ["message unhandled"]


async def test_an_unknown_event_is_left_for_a_newer_instance(compose: Compose) -> None:
    mailroom = await compose(inbox_on=True)
    with pytest.raises(UnknownEventError, match=r"bank\.deposited"):
        await mailroom.consumer.consume(message(), 1)
    assert await inbox_ids(mailroom) == []


async def test_what_cannot_be_read_and_what_a_handler_rejects_come_out_as_such(compose: Compose) -> None:
    async def reject(event: Deposited, context: Context[Any]) -> None:
        raise Reject("we never take cash")

    mailroom = await compose(handling(reject), inbox_on=True)
    damaged = message()
    object.__setattr__(damaged, "payload", "{")
    with pytest.raises(UndecodableError):
        await mailroom.consumer.consume(damaged, 1)
    with pytest.raises(Reject, match="cash"):
        await mailroom.consumer.consume(message(), 1)


async def test_the_context_tells_a_handler_what_it_needs(compose: Compose) -> None:
    seen: list[Context[Any]] = []

    async def look(event: Deposited, context: Context[Any]) -> None:
        seen.append(context)
        context.publish(Renamed(new_name="x"))

    mailroom = await compose(handling(look), resources="a clock", outbox_on=True)
    sent = encode(Deposited(amount=1), headers={"correlation_id": "c-1"})
    await mailroom.consumer.consume(sent, 3)
    (context,) = seen
    assert (context.message_id, context.attempt, context.resources) == (sent.message_id, 3, "a clock")
    assert context.headers["correlation_id"] == "c-1"
    (raised,) = await rows(mailroom)
    assert '"correlation_id": "c-1"' in raised.headers
    assert f'"causation_id": "{sent.message_id}"' in raised.headers


class Remembering(InboxStore):
    """A store that somebody wrote by hand, with the two methods that it must have."""

    def __init__(self) -> None:
        self.marked: list[UUID] = []

    def __len__(self) -> int:
        return len(self.marked)

    async def already_processed(self, message_id: UUID) -> bool:
        return message_id in self.marked

    async def mark_processed(self, message_id: UUID, event_type: str) -> None:
        self.marked.append(message_id)


async def test_a_hand_written_store_with_only_the_pair_keeps_working(compose: Compose) -> None:
    store = Remembering()
    mailroom = await compose(handling(first), inbox=store, inbox_on=True)
    sent = message()
    assert [await mailroom.consumer.consume(sent, 1) for _ in range(2)] == ["handled", "duplicate"]
    assert store.marked == [sent.message_id]
    assert await effects(mailroom) == ["first"]


async def test_a_hand_written_store_is_not_asked_while_the_inbox_is_off(compose: Compose) -> None:
    store = Remembering()
    mailroom = await compose(handling(first), inbox=store, inbox_on=False)
    await mailroom.consumer.consume(message(), 1)
    assert store.marked == []


async def test_a_hand_written_store_marks_nothing_that_failed(compose: Compose) -> None:
    store = Remembering()
    mailroom = await compose(handling(first, fail), inbox=store, inbox_on=True)
    with pytest.raises(ValueError, match="no luck"):
        await mailroom.consumer.consume(message(), 1)
    assert store.marked == []
    assert await effects(mailroom) == []


async def test_complete_without_try_begin_still_records(compose: Compose) -> None:
    mailroom = await compose(inbox_on=True)
    store = mailroom.consumer.inbox
    message_id = uuid4()
    async with mailroom.sessions()() as session:
        session.add(Account())
        await store.complete(session, message_id, "bank.deposited")
    await store.mark_processed(uuid4(), "bank.deposited")
    assert await store.already_processed(message_id)
    assert len(await inbox_ids(mailroom)) == 2


async def test_handlers_of_one_event_run_in_the_order_in_which_they_were_added(compose: Compose) -> None:
    async def second(event: Deposited, context: Context[Any]) -> None:
        effect(context, "second")

    mailroom = await compose(handling(first, second), handling(first))
    await mailroom.consumer.consume(message(), 1)
    assert await effects(mailroom) == ["first", "second", "first"]


def test_what_can_never_be_called_is_refused_when_it_is_registered() -> None:
    handlers = Handlers()
    with pytest.raises(TypeError, match="async def"):
        handlers.on(Deposited)(lambda event, context: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="must be a function"):
        handlers.on(Deposited)(partial(note, context=None))  # it has no name for posture, logs and metrics
    with pytest.raises(TypeError, match="no event with a name"):
        handlers.on(int)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="above 0"):
        handlers.on(Deposited, timeout_seconds=0)
