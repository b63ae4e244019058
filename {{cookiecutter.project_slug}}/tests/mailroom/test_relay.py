"""Contract R0, R4-R7: sent, retried with backoff, dead-lettered with a reason, and nothing else is harmed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from relaying import noting_attempts, publish, started
from support import (
    Broker,
    Compose,
    Deposited,
    Renamed,
    amount_of,
    change_rows,
    effect,
    effects,
    expire_leases,
    make_due,
    rows,
    until,
)

from mailroom import Context, Handlers, Mailroom, Reject
from mailroom.envelope import Message
from mailroom.errors import ConnectionLostError, TransportUnavailableError
from mailroom.events import Kind
from mailroom.outbox.leases import Leases
from mailroom.outbox.selection import Selection
from mailroom.persistence.tables import OutboxMessage


class TestRouting:
    async def test_in_process_both_kinds_reach_the_handlers(self, compose: Compose) -> None:
        handlers = noting_attempts()

        @handlers.on(Renamed)
        async def rename(event: Renamed, context: Context[Any]) -> None:
            effect(context, event.new_name)

        mailroom = await compose(handlers, outbox_on=True)
        await mailroom.publish(Deposited(amount=1))
        await mailroom.publish(Renamed(new_name="bea"))
        assert await mailroom.drain() == 2
        assert sorted(await effects(mailroom)) == ["1 at attempt 1", "bea"]
        assert all(row.processed_on and not row.lock_token and not row.locked_until for row in await rows(mailroom))

    async def test_over_a_broker_domain_events_stay_here_and_integration_events_are_published_unread(
        self, compose_with: Callable[..., Awaitable[Mailroom]]
    ) -> None:
        handlers, broker = Handlers(), Broker()

        @handlers.on(Renamed)
        async def rename(event: Renamed, context: Context[Any]) -> None:
            effect(context, event.new_name)

        mailroom = await compose_with(broker, handlers)
        await mailroom.publish(Renamed(new_name="bea"))
        await publish(mailroom, 1)
        await change_rows(mailroom, OutboxMessage.kind == "integration", event_type="never.heard-of")
        await mailroom.drain()
        assert broker.sent == [1]
        assert await effects(mailroom) == ["bea"]

    async def test_a_slow_handler_never_delays_a_publish(
        self, compose_with: Callable[..., Awaitable[Mailroom]]
    ) -> None:
        entered, go = asyncio.Event(), asyncio.Event()
        handlers, broker = Handlers(), Broker()

        @handlers.on(Renamed)
        async def hang(event: Renamed, context: Context[Any]) -> None:
            entered.set()
            await go.wait()

        mailroom = await compose_with(broker, handlers)
        async with started(mailroom.processor):
            await mailroom.publish(Renamed(new_name="bea"))
            await entered.wait()
            await publish(mailroom, 1, 2)

            async def is_sent() -> bool:
                return sorted(broker.sent) == [1, 2]

            await until(is_sent)
            go.set()

    async def test_a_slow_message_delays_no_other(self, compose_with: Callable[..., Awaitable[Mailroom]]) -> None:
        go = asyncio.Event()

        async def behave(message: Message) -> None:
            if amount_of(message) == 0:
                await go.wait()

        broker = Broker(behave)
        mailroom = await compose_with(broker, outbox={"batch_size": 2})
        await publish(mailroom, *range(9))
        async with started(mailroom.processor):

            async def rest_is_stamped() -> bool:
                return sum(row.processed_on is not None for row in await rows(mailroom)) == 8

            await until(rest_is_stamped)
            go.set()
        assert sorted(broker.sent) == list(range(9))


class TestFailing:
    async def test_a_failing_message_backs_off_and_is_dead_lettered_after_its_attempts(self, compose: Compose) -> None:
        mailroom = await compose(
            noting_attempts(lambda amount: ValueError("no luck") if amount == 1 else None),
            outbox_on=True,
            outbox={"max_attempts": 3, "backoff_base_seconds": 10},
        )
        await publish(mailroom, 1, 2)
        waits = []
        for _ in range(3):
            assert await mailroom.drain() >= 1
            row, other = await rows(mailroom)
            assert other.processed_on is not None
            waits.append((row.available_on - row.occurred_on).total_seconds())
            await make_due(mailroom)
        assert 8 <= waits[0] <= 13
        assert 16 <= waits[1] <= 25
        assert row.attempts == 3
        assert row.dead_lettered_on is not None
        assert row.last_error == "ValueError: no luck"
        assert await mailroom.drain() == 0

    async def test_a_rejected_message_is_dead_lettered_at_once(self, compose: Compose) -> None:
        mailroom = await compose(noting_attempts(lambda amount: Reject("we take no cash")), outbox_on=True)
        await publish(mailroom, 1)
        await mailroom.drain()
        (row,) = await rows(mailroom)
        assert (row.attempts, row.last_error) == (1, "Reject: we take no cash")
        assert row.dead_lettered_on is not None

    @pytest.mark.parametrize(
        ("damage", "reason"),
        [({"payload": "{"}, "UndecodableError"), ({"headers": "[]"}, "headers"), ({"headers": "{"}, "headers")],
    )
    async def test_an_unreadable_row_is_dead_lettered_at_once_and_the_rest_goes_on(
        self, compose: Compose, damage: dict[str, str], reason: str
    ) -> None:
        mailroom = await compose(noting_attempts(), outbox_on=True)
        await publish(mailroom, 1, 2)
        await change_rows(mailroom, OutboxMessage.id == 1, **damage)
        await mailroom.drain()
        row, other = await rows(mailroom)
        assert row.dead_lettered_on is not None
        assert reason in str(row.last_error)
        assert other.processed_on is not None

    async def test_an_unknown_type_or_version_backs_off_like_a_failure(self, compose: Compose) -> None:
        mailroom = await compose(noting_attempts(), outbox_on=True)
        await publish(mailroom, 1, 2, 3)
        await change_rows(mailroom, OutboxMessage.id == 1, event_type="bank.of-tomorrow")
        await change_rows(mailroom, OutboxMessage.id == 2, event_version=2)
        await mailroom.drain()
        unknown, newer, other = await rows(mailroom)
        for row in (unknown, newer):
            assert (row.attempts, row.dead_lettered_on) == (1, None)
            assert "UnknownEventError" in str(row.last_error)
        assert other.processed_on is not None

    async def test_one_unsendable_message_neither_spins_nor_blocks_the_rest(
        self, compose_with: Callable[..., Awaitable[Mailroom]]
    ) -> None:
        tries: list[int] = []

        async def behave(message: Message) -> None:
            tries.append(amount_of(message))
            if amount_of(message) == 0:
                raise RuntimeError("frame too large")

        broker = Broker(behave)
        mailroom = await compose_with(broker, outbox={"batch_size": 2, "polling_interval_seconds": 0.01})
        await publish(mailroom, *range(7))
        async with started(mailroom.processor):

            async def rest_is_stamped() -> bool:
                return sum(row.processed_on is not None for row in await rows(mailroom)) == 6

            await until(rest_is_stamped)
        assert tries.count(0) == 1

    async def test_an_error_text_is_kept_to_its_first_4000_characters(self, compose: Compose) -> None:
        mailroom = await compose(noting_attempts(lambda amount: ValueError("x" * 9000)), outbox_on=True)
        await publish(mailroom, 1)
        await mailroom.drain()
        (row,) = await rows(mailroom)
        assert len(str(row.last_error)) == 4000

    @pytest.mark.parametrize(
        ("told", "kept"),
        [
            ("a name \udcff of bytes", "OddError: a name \\udcff of bytes"),
            ("a\0z", "OddError: a\\x00z"),
            (None, "OddError: its message cannot be read (ZeroDivisionError)"),
        ],
    )
    async def test_an_error_whose_text_no_database_stores_is_written_back_like_any_other(
        self, compose: Compose, told: str | None, kept: str
    ) -> None:
        class OddError(Exception):
            def __str__(self) -> str:
                return told if told is not None else str(1 / 0)

        mailroom = await compose(noting_attempts(lambda amount: OddError() if amount == 1 else None), outbox_on=True)
        await publish(mailroom, 1, 2)
        assert await mailroom.drain() == 2
        assert [row.last_error for row in await rows(mailroom)] == [kept, None]

    async def test_a_handler_that_cancels_itself_is_a_failure_and_no_shutdown(self, compose: Compose) -> None:
        mailroom = await compose(noting_attempts(lambda amount: asyncio.CancelledError()), outbox_on=True)  # type: ignore[arg-type, return-value]
        await publish(mailroom, 1)
        await mailroom.drain()
        (row,) = await rows(mailroom)
        assert row.attempts == 1
        assert "CancelledError" in str(row.last_error)

    async def test_in_process_with_the_inbox_a_retried_row_has_its_effects_once(self, compose: Compose) -> None:
        mailroom = await compose(noting_attempts(), outbox_on=True, inbox_on=True)
        await publish(mailroom, 1)
        await mailroom.drain()
        await mailroom.outbox.replay(Selection(ids=[1]))
        await mailroom.drain()
        assert await effects(mailroom) == ["1 at attempt 1"]
        (row,) = await rows(mailroom)
        assert row.processed_on is not None


class TestTransportDown:
    async def test_an_unreachable_broker_uses_up_no_attempts(
        self, compose_with: Callable[..., Awaitable[Mailroom]], caplog: pytest.LogCaptureFixture
    ) -> None:
        down = 5

        async def behave(message: Message) -> None:
            nonlocal down
            if down:
                down -= 1
                raise TransportUnavailableError("connection refused")

        caplog.set_level(logging.INFO, "mailroom")
        broker = Broker(behave)
        mailroom = await compose_with(broker)
        await publish(mailroom, 1, 2)
        await mailroom.drain()
        assert sorted(broker.sent) == [1, 2]
        assert [row.attempts for row in await rows(mailroom)] == [0, 0]
        told = [record.getMessage() for record in caplog.records if "transport" in record.getMessage()]
        assert told[0] == "transport unavailable"
        assert told[-1] == "transport available again"

    async def test_a_message_that_breaks_the_connection_alone_is_charged_and_its_neighbours_are_not(
        self, compose_with: Callable[..., Awaitable[Mailroom]]
    ) -> None:
        in_flight: set[int] = set()

        async def behave(message: Message) -> None:
            amount = amount_of(message)
            in_flight.add(amount)
            await asyncio.sleep(0)
            broken = 1 in in_flight
            await asyncio.sleep(0)
            in_flight.discard(amount)
            if broken:
                raise ConnectionLostError("connection reset")

        broker = Broker(behave)
        mailroom = await compose_with(broker, outbox={"max_attempts": 2})
        await publish(mailroom, 0, 1, 2, 3)
        await mailroom.drain()
        assert sorted(broker.sent) == [0, 2, 3]
        assert [row.attempts for row in await rows(mailroom)] == [0, 1, 0, 0]
        await make_due(mailroom)
        await mailroom.drain()
        assert (await rows(mailroom))[1].dead_lettered_on is not None

    async def test_after_a_lost_connection_rows_are_sent_one_by_one(
        self, compose_with: Callable[..., Awaitable[Mailroom]]
    ) -> None:
        lost, in_flight, together = 0, 0, 0

        async def behave(message: Message) -> None:
            nonlocal lost, in_flight, together
            if lost < 3:
                lost += 1
                raise ConnectionLostError("connection reset")
            in_flight += 1
            together = max(together, in_flight)
            for _ in range(10):  # long enough for the relay to claim more
                await rows(mailroom)
            in_flight -= 1

        broker = Broker(behave)
        mailroom = await compose_with(broker)
        await publish(mailroom, 1, 2, 3)
        await mailroom.drain()
        assert sorted(broker.sent) == [1, 2, 3]
        assert together == 1

    async def test_during_an_outage_nothing_is_held_so_that_a_kill_charges_nobody(
        self, compose_with: Callable[..., Awaitable[Mailroom]]
    ) -> None:
        tried: list[int] = []

        async def behave(message: Message) -> None:
            tried.append(amount_of(message))
            raise ConnectionLostError("connection reset")

        mailroom = await compose_with(
            Broker(behave), message_bus={"retry_min_interval_seconds": 30, "retry_max_interval_seconds": 30}
        )
        await publish(mailroom, 1, 2, 3)
        async with started(mailroom.processor):

            async def all_are_given_back() -> bool:
                return len(tried) == 3 and not any(row.lock_token for row in await rows(mailroom))

            await until(all_are_given_back)
            assert [row.attempts for row in await rows(mailroom)] == [0, 0, 0]
        assert sorted(tried) == [1, 2, 3]

    async def test_a_stop_during_an_outage_gives_every_row_back_uncharged(
        self, compose_with: Callable[..., Awaitable[Mailroom]]
    ) -> None:
        tried = asyncio.Event()

        async def behave(message: Message) -> None:
            tried.set()
            raise TransportUnavailableError("connection refused")

        mailroom = await compose_with(
            Broker(behave), message_bus={"retry_min_interval_seconds": 30, "retry_max_interval_seconds": 30}
        )
        await publish(mailroom, 1, 2)
        async with started(mailroom.processor):
            await tried.wait()
        for row in await rows(mailroom):
            assert (row.attempts, row.lock_token, row.locked_until, row.processed_on) == (0, None, None, None)


class TestSessions:
    async def test_no_connection_is_held_while_a_message_is_sent(
        self, compose_with: Callable[..., Awaitable[Mailroom]]
    ) -> None:
        held: list[int] = []

        async def look(message: Message) -> None:
            held.append(mailroom.database.engine.pool.checkedout())  # type: ignore[attr-defined]

        mailroom = await compose_with(Broker(look), outbox_on=True)
        await publish(mailroom, 1)
        await mailroom.drain()
        assert held == [0]

    async def test_no_connection_of_the_pool_is_held_while_there_is_nothing_to_do(
        self, compose_with: Callable[..., Awaitable[Mailroom]]
    ) -> None:
        broker = Broker()
        mailroom = await compose_with(broker, outbox_on=True, outbox={"polling_interval_seconds": 7200})
        async with started(mailroom.processor):
            await publish(mailroom, 1)

            async def is_idle() -> bool:
                return broker.sent == [1] and mailroom.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]

            await until(is_idle)


class TestSurviving:
    """The database fails for a while: its table is renamed, and renamed back."""

    @asynccontextmanager
    async def failing(self, mailroom: Mailroom):  # type: ignore[no-untyped-def]
        is_sqlserver = mailroom.database.kind == "sqlserver"
        rename = "EXEC sp_rename '{}', '{}'" if is_sqlserver else "ALTER TABLE {} RENAME TO {}"
        async with mailroom.database.connection() as connection:
            await connection.exec_driver_sql(rename.format("outbox_messages", "away"))
        yield
        async with mailroom.database.connection() as connection:
            await connection.exec_driver_sql(rename.format("away", "outbox_messages"))

    async def test_the_relay_goes_on_when_the_database_is_back(
        self, compose: Compose, caplog: pytest.LogCaptureFixture
    ) -> None:
        mailroom = await compose(noting_attempts(), outbox_on=True, outbox={"polling_interval_seconds": 0.01})
        async with started(mailroom.processor):
            async with self.failing(mailroom):
                mailroom.processor.wake([Kind.INTEGRATION])

                async def was_noticed() -> bool:
                    return {"outbox poll failed, trying again", "outbox relay failed, trying again"} <= set(
                        caplog.messages
                    )

                await until(was_noticed)
            await publish(mailroom, 1)

            async def is_stamped() -> bool:
                return all(row.processed_on for row in await rows(mailroom))

            await until(is_stamped)
        assert await effects(mailroom) == ["1 at attempt 1"]

    async def test_what_was_sent_meanwhile_is_stamped_when_the_database_is_back(
        self, compose_with: Callable[..., Awaitable[Mailroom]], caplog: pytest.LogCaptureFixture
    ) -> None:
        entered, go = asyncio.Event(), asyncio.Event()

        async def behave(message: Message) -> None:
            entered.set()
            await go.wait()

        broker = Broker(behave)
        mailroom = await compose_with(broker, outbox={"lease_seconds": 0.6}, handler_timeout_seconds=0.5)
        await publish(mailroom, 1)
        async with started(mailroom.processor):
            await entered.wait()
            async with self.failing(mailroom):

                async def was_not_renewed() -> bool:
                    return "outbox leases could not be renewed, trying again" in caplog.messages

                await until(was_not_renewed)
                go.set()

                async def was_not_stamped() -> bool:
                    return "outbox write-back failed, trying again" in caplog.messages

                await until(was_not_stamped)

            async def is_stamped() -> bool:
                return all(row.processed_on for row in await rows(mailroom))

            await until(is_stamped)
        assert broker.sent == [1]

    async def test_a_stop_waits_for_no_row_that_cannot_be_written_back_and_the_next_start_writes_it(
        self, compose: Compose, caplog: pytest.LogCaptureFixture
    ) -> None:
        entered, go = asyncio.Event(), asyncio.Event()
        handlers = Handlers()

        @handlers.on(Deposited)
        async def wait(event: Deposited, context: Context[Any]) -> None:
            entered.set()
            await go.wait()

        mailroom = await compose(handlers, outbox_on=True, outbox={"polling_interval_seconds": 0.01})
        await publish(mailroom, 1)
        await Leases(mailroom.database, lease_seconds=60).claim(Kind.INTEGRATION, 1)
        await expire_leases(mailroom)
        async with self.failing(mailroom):
            await mailroom.processor.start()
        await entered.wait()
        await publish(mailroom, 2)
        async with self.failing(mailroom):
            go.set()

            async def was_not_stamped() -> bool:
                return "outbox write-back failed, trying again" in caplog.messages

            await until(was_not_stamped)
            await mailroom.processor.stop()
        assert "outbox could not write back while stopping; its leases will run out" in caplog.messages
        async with started(mailroom.processor):

            async def is_stamped() -> bool:
                return all(row.processed_on for row in await rows(mailroom))

            await until(is_stamped)


class TestStopping:
    async def test_what_is_in_flight_is_finished_and_the_rest_is_given_back(self, compose: Compose) -> None:
        entered, go = asyncio.Event(), asyncio.Event()
        handlers = Handlers()

        @handlers.on(Deposited)
        async def wait(event: Deposited, context: Context[Any]) -> None:
            entered.set()
            await go.wait()
            effect(context, str(event.amount))

        mailroom = await compose(handlers, outbox_on=True, message_bus={"concurrency": 1})
        await publish(mailroom, 1, 2, 3)
        await mailroom.processor.start()
        await entered.wait()
        stopping = asyncio.create_task(mailroom.processor.stop())
        await asyncio.sleep(0)
        go.set()
        await stopping
        assert await effects(mailroom) == ["1"]
        done, *left = await rows(mailroom)
        assert done.processed_on is not None
        for row in left:
            assert (row.attempts, row.lock_token, row.processed_on, row.last_error) == (0, None, None, None)

    async def test_what_does_not_finish_in_time_is_undone_and_costs_nothing(self, compose: Compose) -> None:
        entered = asyncio.Event()
        handlers = Handlers()

        @handlers.on(Deposited)
        async def hang(event: Deposited, context: Context[Any]) -> None:
            effect(context, "hung")
            entered.set()
            await asyncio.Event().wait()

        mailroom = await compose(handlers, outbox_on=True, inbox_on=True, shutdown_timeout_seconds=0.05)
        await publish(mailroom, 1)
        await mailroom.processor.start()
        await entered.wait()
        await mailroom.processor.stop()
        await mailroom.processor.stop()
        (row,) = await rows(mailroom)
        assert (row.attempts, row.lock_token, row.processed_on, row.last_error) == (0, None, None, None)
        assert await effects(mailroom) == []

    async def test_a_stopped_relay_can_be_started_again(self, compose: Compose) -> None:
        mailroom = await compose(noting_attempts(), outbox_on=True)
        await mailroom.processor.stop()
        for amount in (1, 2):
            async with started(mailroom.processor):
                await publish(mailroom, amount)

                async def is_stamped() -> bool:
                    return all(row.processed_on for row in await rows(mailroom))

                await until(is_stamped)
        assert await effects(mailroom) == ["1 at attempt 1", "2 at attempt 1"]


class TestWaking:
    async def test_a_commit_wakes_the_relay_at_once(self, compose: Compose) -> None:
        handled = asyncio.Event()
        handlers = Handlers()

        @handlers.on(Deposited)
        async def note(event: Deposited, context: Context[Any]) -> None:
            handled.set()

        mailroom = await compose(handlers, outbox_on=True, outbox={"polling_interval_seconds": 3600})
        async with started(mailroom.processor):
            await publish(mailroom, 1)
            await handled.wait()

    async def test_more_rows_than_fit_into_a_batch_need_no_further_poll(self, compose: Compose) -> None:
        slowly = {"polling_interval_seconds": 3600, "batch_size": 2}
        mailroom = await compose(noting_attempts(), outbox_on=True, outbox=slowly)
        await publish(mailroom, *range(7))
        async with started(mailroom.processor):

            async def is_done() -> bool:
                return len(await effects(mailroom)) == 7

            await until(is_done)

    async def test_what_another_process_commits_is_found_by_polling(self, compose: Compose) -> None:
        mailroom = await compose(noting_attempts(), outbox_on=True, outbox={"polling_interval_seconds": 0.01})
        other = await compose(outbox_on=True)
        async with started(mailroom.processor):
            await publish(other, 1)

            async def is_stamped() -> bool:
                return all(row.processed_on for row in await rows(mailroom))

            await until(is_stamped)

    async def test_an_idle_relay_asks_once_per_interval(self, compose: Compose) -> None:
        mailroom = await compose(noting_attempts(), outbox_on=True, outbox={"polling_interval_seconds": 3600})
        asked = []
        ask, claim = mailroom.processor._leases.due, mailroom.processor._leases.claim

        async def counting_ask():  # type: ignore[no-untyped-def]
            asked.append("due")
            return await ask()

        async def counting_claim(kind: Kind, limit: int):  # type: ignore[no-untyped-def]
            asked.append("claim")
            return await claim(kind, limit)

        mailroom.processor._leases.due = counting_ask  # type: ignore[method-assign]
        mailroom.processor._leases.claim = counting_claim  # type: ignore[method-assign]
        async with started(mailroom.processor):

            async def has_asked() -> bool:
                return bool(asked)

            await until(has_asked)
        assert asked == ["due"]
