"""Contract O1-O3: what is captured, when, and what fails the commit."""

import asyncio
import gc
import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import bindparam, event, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from support import Account, Compose, Deposited, Effect, Renamed, count, effect, effects, rows

from mailroom import Context, Handlers, Mailroom, Settings
from mailroom.errors import CaptureError, OpenTransactionError, SerializationError
from mailroom.persistence.capture import task_has_open_transaction


@pytest.fixture
async def mailroom(compose: Compose) -> Mailroom:
    return await compose(outbox_on=True)


async def amounts(mailroom: Mailroom) -> list[str]:
    return [row.payload for row in await rows(mailroom)]


def payload(amount: int) -> str:
    return json.dumps({"amount": amount, "account": "anna"}, separators=(",", ":"))


async def stored_account(mailroom: Mailroom) -> Account:
    async with mailroom.transaction() as session:
        account = Account()
        session.add(account)
    return account


class TestCommitting:
    async def test_a_transaction_block_commits_the_change_and_its_event_together(self, mailroom: Mailroom) -> None:
        async with mailroom.transaction() as session:
            account = Account()
            session.add(account)
            account.deposit(5)
        assert await amounts(mailroom) == [payload(5)]

    async def test_an_explicit_commit_captures(self, mailroom: Mailroom) -> None:
        async with mailroom.sessions()() as session:
            account = Account()
            account.deposit(5)
            session.add(account)
            await session.commit()
            account.deposit(6)
            await session.commit()
        assert await amounts(mailroom) == [payload(5), payload(6)]

    async def test_a_begin_block_of_the_sessionmaker_captures(self, mailroom: Mailroom) -> None:
        async with mailroom.sessions().begin() as session:
            account = Account()
            session.add(account)
            account.deposit(5)
        assert await amounts(mailroom) == [payload(5)]

    async def test_a_commit_inside_run_sync_captures(self, mailroom: Mailroom) -> None:
        def work(session: Any) -> None:
            account = Account()
            session.add(account)
            account.deposit(5)
            session.commit()

        async with mailroom.sessions()() as session:
            await session.run_sync(work)
        assert await amounts(mailroom) == [payload(5)]

    async def test_events_keep_the_order_in_which_they_were_raised(self, mailroom: Mailroom) -> None:
        async with mailroom.transaction() as session:
            first, second = Account(), Account()
            session.add_all([first, second])
            for amount in range(4):
                (first, second)[amount % 2].deposit(amount)
        assert await amounts(mailroom) == [payload(amount) for amount in range(4)]

    async def test_an_event_that_is_only_published_needs_no_other_change(self, mailroom: Mailroom) -> None:
        async with mailroom.transaction() as session:
            mailroom.publish(session, Deposited(amount=1))
        await mailroom.publish(Deposited(amount=2))
        assert await amounts(mailroom) == [payload(1), payload(2)]

    async def test_an_aggregate_that_went_out_of_sight_still_counts(self, mailroom: Mailroom) -> None:
        stored = await stored_account(mailroom)
        async with mailroom.transaction() as session:
            (await session.get_one(Account, stored.id)).raise_event(Deposited(amount=5))
            gc.collect()
        assert await amounts(mailroom) == [payload(5)]

    async def test_expunged_and_deleted_aggregates_still_count(self, mailroom: Mailroom) -> None:
        stored = await stored_account(mailroom)
        async with mailroom.transaction() as session:
            account = await session.get_one(Account, stored.id)
            account.raise_event(Deposited(amount=1))
            session.expunge(account)
            other = Account()
            session.add(other)
            await session.flush()
            other.raise_event(Deposited(amount=2))
            await session.delete(other)
        assert await amounts(mailroom) == [payload(1), payload(2)]

    async def test_an_event_raised_inside_a_flush_is_captured(self, mailroom: Mailroom) -> None:
        def raise_late(mapper: Any, connection: Any, target: Account) -> None:
            target.raise_event(Deposited(amount=9))

        event.listen(Account, "before_insert", raise_late)
        try:
            await stored_account(mailroom)
        finally:
            event.remove(Account, "before_insert", raise_late)
        assert await amounts(mailroom) == [payload(9)]

    async def test_a_before_commit_listener_that_runs_after_ours_may_still_raise(self, mailroom: Mailroom) -> None:
        async with mailroom.sessions()() as session:
            account = Account()
            session.add(account)
            event.listen(
                session.sync_session, "before_commit", lambda _: account.raise_event(Deposited(amount=9)), once=True
            )
            await session.commit()
        assert await amounts(mailroom) == [payload(9)]

    async def test_merging_a_transient_aggregate_takes_its_events_along(self, mailroom: Mailroom) -> None:
        async with mailroom.transaction() as session:
            one, two = Account(id=uuid4()), Account(id=uuid4())
            one.deposit(1)
            two.deposit(2)
            await session.merge(one)
            await session.merge_all([two])
        assert await amounts(mailroom) == [payload(1), payload(2)]

    async def test_bulk_saved_aggregates_take_their_events_along(self, mailroom: Mailroom) -> None:
        account = Account(id=uuid4())
        account.deposit(5)
        async with mailroom.transaction() as session:
            await session.run_sync(lambda sync: sync.bulk_save_objects([account]))
        assert await amounts(mailroom) == [payload(5)]

    async def test_an_observer_that_raises_keeps_nobody_from_handling(self, compose: Compose) -> None:
        handlers = Handlers()

        @handlers.on(Deposited)
        async def note(event: Deposited, context: Context[Any]) -> None:
            effect(context, str(event.amount))

        def refuse(events: Any) -> None:
            raise AssertionError("not what the test expects")

        mailroom = await compose(handlers)
        forget = mailroom.observe(refuse)
        with pytest.raises(AssertionError, match="not what the test expects"):
            async with mailroom.transaction() as session:
                mailroom.publish(session, Deposited(amount=1))
        forget()
        async with mailroom.transaction() as session:
            mailroom.publish(session, Deposited(amount=2))
        assert await effects(mailroom) == ["1", "2"]

    async def test_a_session_that_joins_the_transaction_takes_nothing_from_it(self, mailroom: Mailroom) -> None:
        async with mailroom.transaction() as session:
            mailroom.publish(session, Deposited(amount=1))
            connection = await session.connection()
            async with mailroom.sessions()(bind=connection) as joined:
                await count(joined, Account)
        assert await amounts(mailroom) == [payload(1)]

    async def test_the_rows_are_inserted_last(self, mailroom: Mailroom) -> None:
        statements: list[str] = []
        event.listen(
            mailroom.database.engine.sync_engine,
            "before_cursor_execute",
            lambda connection, cursor, statement, *rest: statements.append(statement),
        )
        async with mailroom.transaction() as session:
            account = Account()
            account.deposit(5)
            session.add(account)
            await session.flush()
            session.add(Account())
        inserted = [statement.split()[2] for statement in statements if statement.startswith("INSERT")]
        assert inserted == ["accounts", "accounts", "outbox_messages"]

    @pytest.mark.locks
    async def test_transactions_that_read_before_they_write_wait_for_each_other(self, mailroom: Mailroom) -> None:
        stored = await stored_account(mailroom)

        async def deposit() -> None:
            async with mailroom.transaction() as session:
                await session.execute(LOCK, {"account": stored.id})
                account = await session.get_one(Account, stored.id)
                await asyncio.sleep(0)
                account.deposit(1)

        await asyncio.gather(*(deposit() for _ in range(10)))
        async with mailroom.reader() as session:
            assert (await session.get_one(Account, stored.id)).balance == 10
        assert len(await rows(mailroom)) == 10


class TestSavepoints:
    async def test_a_released_savepoint_keeps_its_events(self, mailroom: Mailroom) -> None:
        async with mailroom.transaction() as session:
            account = Account()
            session.add(account)
            async with session.begin_nested():
                account.deposit(1)
        assert await amounts(mailroom) == [payload(1)]

    async def test_a_savepoint_that_rolls_back_discards_exactly_its_events(self, mailroom: Mailroom) -> None:
        async with mailroom.transaction() as session:
            account = Account()
            session.add(account)
            account.deposit(1)
            outer = await session.begin_nested()
            account.deposit(2)
            inner = await session.begin_nested()
            account.deposit(3)
            await inner.commit()
            await outer.rollback()
            await session.refresh(account)
            account.deposit(4)
        assert await amounts(mailroom) == [payload(1), payload(4)]

    async def test_committing_the_root_over_an_open_savepoint_captures_both(self, mailroom: Mailroom) -> None:
        async with mailroom.sessions()() as session:
            root = await session.begin()
            account = Account()
            session.add(account)
            account.deposit(1)
            await session.begin_nested()
            account.deposit(2)
            await root.commit()
        assert await amounts(mailroom) == [payload(1), payload(2)]

    async def test_leaving_a_begin_block_over_an_open_savepoint_captures_both(self, mailroom: Mailroom) -> None:
        async with mailroom.sessions()() as session, session.begin():
            account = Account()
            session.add(account)
            account.deposit(1)
            await session.begin_nested()
            account.deposit(2)
        assert await amounts(mailroom) == [payload(1), payload(2)]


class TestRollingBack:
    async def test_a_rollback_stores_nothing(self, mailroom: Mailroom) -> None:
        async with mailroom.sessions()() as session:
            account = Account()
            session.add(account)
            account.deposit(5)
            await session.rollback()
            await session.commit()
        assert await rows(mailroom) == []

    async def test_closing_without_a_commit_stores_nothing(self, mailroom: Mailroom) -> None:
        async with mailroom.sessions()() as session:
            mailroom.publish(session, Deposited(amount=5))
            await session.close()
            await session.commit()
        assert await rows(mailroom) == []

    async def test_an_exception_in_the_block_stores_nothing(self, mailroom: Mailroom) -> None:
        async def change_my_mind() -> None:
            async with mailroom.transaction() as session:
                mailroom.publish(session, Deposited(amount=5))
                raise RuntimeError

        with pytest.raises(RuntimeError):
            await change_my_mind()
        assert await rows(mailroom) == []

    @pytest.mark.parametrize("flushed", [False, True])
    async def test_an_aggregate_that_is_added_again_after_a_rollback_brings_its_events_again(
        self, mailroom: Mailroom, flushed: bool
    ) -> None:
        account = Account()
        account.deposit(5)
        async with mailroom.sessions()() as session:
            session.add(account)
            if flushed:
                await session.flush()
            await session.rollback()
            session.add(account)
            await session.commit()
        assert await amounts(mailroom) == [payload(5)]

    async def test_an_earlier_commit_of_the_session_does_not_count_for_what_is_rolled_back(
        self, mailroom: Mailroom
    ) -> None:
        account = Account()
        account.deposit(5)
        async with mailroom.sessions()() as session:
            mailroom.publish(session, Deposited(amount=1))
            await session.commit()
            session.add(account)
            await session.rollback()
            session.add(account)
            await session.commit()
        assert await amounts(mailroom) == [payload(1), payload(5)]

    async def test_a_loaded_aggregate_forgets_what_was_rolled_back_with_it(self, mailroom: Mailroom) -> None:
        stored = await stored_account(mailroom)
        async with mailroom.sessions()() as session:
            account = await session.get_one(Account, stored.id)
            account.deposit(5)
            await session.rollback()
            await session.refresh(account)
            account.deposit(6)
            await session.commit()
        assert await amounts(mailroom) == [payload(6)]


LOCK = update(Account).where(Account.id == bindparam("account")).values(balance=Account.balance)
"""Takes the lock of a row on every database; SQL Server has no SELECT … FOR UPDATE."""


async def defer_foreign_keys(session: AsyncSession) -> None:
    """Lets the database refuse the commit instead of the statement; SQL Server cannot do that."""
    match session.get_bind().dialect.name:
        case "sqlite":
            await session.execute(text("PRAGMA defer_foreign_keys = ON"))
        case "postgresql":
            await session.execute(text("ALTER TABLE effects ALTER CONSTRAINT effects_account_id_fkey DEFERRABLE"))
            await session.execute(text("SET CONSTRAINTS ALL DEFERRED"))


class TestRefusals:
    async def test_a_session_that_mailroom_does_not_know_fails_the_commit(self, mailroom: Mailroom) -> None:
        async with async_sessionmaker(mailroom.database.engine)() as session:
            account = Account()
            account.deposit(5)
            session.add(account)
            with pytest.raises(CaptureError, match=r"does not belong to a Mailroom.*bank\.deposited"):
                await session.commit()
        async with mailroom.reader() as session:
            assert await count(session, Account) == 0

    async def test_a_session_joined_to_an_outer_connection_fails_the_commit(self, mailroom: Mailroom) -> None:
        async with mailroom.database.engine.connect() as connection, connection.begin():
            async with mailroom.sessions()(bind=connection) as session:
                mailroom.publish(session, Deposited(amount=5))
                with pytest.raises(CaptureError, match="whose commit mailroom cannot see"):
                    await session.commit()
            await connection.rollback()
        assert await rows(mailroom) == []

    async def test_a_two_phase_session_fails_the_commit(self, mailroom: Mailroom) -> None:
        async with mailroom.sessions()(twophase=True) as session:
            mailroom.publish(session, Deposited(amount=5))
            with pytest.raises(CaptureError, match="Two-phase"):
                await session.commit()
        assert await rows(mailroom) == []

    async def test_a_reader_refuses_events(self, mailroom: Mailroom) -> None:
        with pytest.raises(CaptureError, match="only reads"):
            async with mailroom.reader() as session:
                mailroom.publish(session, Deposited(amount=5))

    async def test_a_commit_listener_that_raises_before_any_statement_is_refused(self, mailroom: Mailroom) -> None:
        async with mailroom.sessions()() as session:
            await session.begin()
            event.listen(
                session.sync_session, "before_commit", lambda _: mailroom.publish(session, Deposited(amount=9))
            )
            with pytest.raises(CaptureError, match="too late"):
                await session.commit()

    @pytest.mark.parametrize("outbox_on", [True, False])
    @pytest.mark.parametrize("name", ["a\0b", "\ud800"])
    async def test_an_event_that_cannot_be_stored_fails_the_commit(
        self, compose: Compose, outbox_on: bool, name: str
    ) -> None:
        mailroom = await compose(outbox_on=outbox_on)
        async with mailroom.sessions()() as session:
            account = Account()
            session.add(account)
            account.raise_event(Renamed(new_name=name))
            with pytest.raises(SerializationError, match=r"bank\.renamed"):
                await session.commit()
        async with mailroom.reader() as session:
            assert await count(session, Account) == 0

    async def test_a_commit_that_fails_leaves_no_open_transaction_behind(self, compose: Compose) -> None:
        mailroom = await compose(database={"pool_size": 1, "max_overflow": 2}, message_bus={"concurrency": 1})
        for refused in ("\0", "refused by the database"):
            async with mailroom.sessions()() as session:
                if refused == "\0":
                    mailroom.publish(session, Renamed(new_name=refused))
                    expected: type[Exception] = SerializationError
                else:
                    await defer_foreign_keys(session)
                    session.add(Effect(message_id=uuid4(), account_id=uuid4()))
                    expected = IntegrityError
                with pytest.raises(expected):
                    await session.commit()
                if refused == "\0":
                    await stored_account(mailroom)  # the writer's place is free before the session is closed
            await stored_account(mailroom)

    async def test_publish_on_its_own_is_refused_inside_an_open_transaction(self, mailroom: Mailroom) -> None:
        async with mailroom.transaction() as session:
            await session.execute(select(1))
            with pytest.raises(OpenTransactionError, match="publish"):
                await mailroom.publish(Deposited(amount=5))
        async with mailroom.reader():
            await mailroom.publish(Deposited(amount=6))
        assert await amounts(mailroom) == [payload(6)]

    async def test_what_makes_no_sense_is_refused_when_it_is_raised(self) -> None:
        soon = datetime.now(UTC)
        for how in (
            {"ordering_key": "a", "delay": timedelta(1)},
            {"delay": timedelta(1), "not_before": soon},
            {"delay": timedelta(-1)},
            {"delay": timedelta.max},
            {"not_before": soon.replace(tzinfo=None)},
        ):
            with pytest.raises(ValueError, match=r"bank\.deposited"):
                Account().deposit(1, **how)


class TestDelays:
    async def test_a_delay_and_a_time_are_not_before_which_the_event_is_sent(self, compose: Compose) -> None:
        handlers = Handlers()

        @handlers.on(Deposited)
        async def note(deposited: Deposited, context: Context[Any]) -> None:
            effect(context, str(deposited.amount))

        mailroom = await compose(handlers, outbox_on=True)
        later = datetime.now(UTC) + timedelta(hours=1)
        await mailroom.publish(Deposited(amount=1), delay=timedelta(hours=1))
        await mailroom.publish(Deposited(amount=2), not_before=later)
        await mailroom.publish(Deposited(amount=3))
        await mailroom.drain()
        assert await effects(mailroom) == ["3"]
        delayed, timed, _ = await rows(mailroom)
        assert abs(delayed.available_on - later) < timedelta(minutes=1)
        assert timed.available_on == later

    async def test_a_delay_without_the_outbox_fails_the_commit(self, compose: Compose) -> None:
        mailroom = await compose(outbox_on=False)
        with pytest.raises(CaptureError, match="enable_outbox = true"):
            await mailroom.publish(Deposited(amount=1), delay=timedelta(hours=1))


def test_a_session_that_begins_outside_any_event_loop_is_nobodys_open_transaction(database_url: str) -> None:
    mailroom = Mailroom(Settings(database={"url": database_url}))
    session = mailroom.sessions()().sync_session
    session.begin()
    assert not task_has_open_transaction()
    session.close()
