"""Contract R1-R3, R6: claimed once, under a token, in order within a key; after a kill each row costs one attempt."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from relaying import noting_attempts, publish, started
from support import (
    Broker,
    Compose,
    Deposited,
    Renamed,
    change_rows,
    effect,
    effects,
    expire_leases,
    make_due,
    rows,
    until,
)

from mailroom import Context, Handlers, Mailroom
from mailroom.envelope import Message
from mailroom.events import Kind
from mailroom.outbox.leases import Leases, Settlement, Verdict
from mailroom.outbox.selection import Selection
from mailroom.persistence.tables import OutboxMessage


class TestLeases:
    def leases(self, mailroom: Mailroom) -> Leases:
        return Leases(mailroom.database, lease_seconds=60)

    async def test_a_row_is_claimed_once(self, compose: Compose) -> None:
        mailroom = await compose(outbox_on=True)
        await publish(mailroom, *range(10))
        relays = [self.leases(mailroom) for _ in range(4)]
        claims = await asyncio.gather(*(relay.claim(Kind.INTEGRATION, 5) for relay in relays))
        assert sorted(claimed.id for claim in claims for claimed in claim) == list(range(1, 11))

    @pytest.mark.locks
    async def test_a_transaction_that_commits_late_is_not_skipped(self, compose: Compose) -> None:
        mailroom = await compose(noting_attempts(), outbox_on=True)
        await publish(mailroom, 2, 1)
        await change_rows(mailroom, OutboxMessage.id == 1, available_on=mailroom.database.claims.later(60))
        await mailroom.drain()
        await make_due(mailroom)
        await mailroom.drain()
        assert await effects(mailroom) == ["1 at attempt 1", "2 at attempt 1"]

    async def test_a_stale_token_changes_nothing(self, compose: Compose) -> None:
        mailroom = await compose(outbox_on=True)
        await publish(mailroom, 1)
        leases = self.leases(mailroom)
        (stale,) = await leases.claim(Kind.INTEGRATION, 5)
        await expire_leases(mailroom)
        successor = await leases.take_over(Kind.INTEGRATION)
        assert successor is not None
        assert await leases.write_back([Settlement(claimed=stale, verdict=Verdict.PROCESSED)]) == 1
        (row,) = await rows(mailroom)
        assert row.processed_on is None
        assert row.lock_token == successor.token
        assert await leases.write_back([Settlement(claimed=successor, verdict=Verdict.PROCESSED)]) == 0

    async def test_renewing_keeps_a_lease(self, compose: Compose) -> None:
        mailroom = await compose(outbox_on=True)
        await publish(mailroom, 1)
        leases = self.leases(mailroom)
        (claimed,) = await leases.claim(Kind.INTEGRATION, 5)
        await expire_leases(mailroom)
        await leases.renew([claimed.token])
        assert await leases.take_over(Kind.INTEGRATION) is None
        due = await leases.due()
        assert not due[Kind.INTEGRATION].expired
        assert not due[Kind.INTEGRATION].fresh

    async def test_leases_are_renewed_while_work_is_in_flight(
        self, compose_with: Callable[..., Awaitable[Mailroom]]
    ) -> None:
        entered, go = asyncio.Event(), asyncio.Event()

        async def behave(message: Message) -> None:
            entered.set()
            await go.wait()

        mailroom = await compose_with(Broker(behave), outbox={"lease_seconds": 1}, handler_timeout_seconds=0.5)
        await publish(mailroom, 1)
        async with started(mailroom.processor):
            await entered.wait()
            before = (await rows(mailroom))[0].locked_until

            async def is_renewed() -> bool:
                after = (await rows(mailroom))[0].locked_until
                return before is not None and after is not None and after > before

            await until(is_renewed)
            go.set()

    async def test_after_a_kill_each_row_costs_one_attempt_and_is_handled_alone(self, compose: Compose) -> None:
        alone, together = 0, 0
        handlers = Handlers()

        @handlers.on(Deposited)
        async def watch(event: Deposited, context: Context[Any]) -> None:
            nonlocal alone, together
            alone += 1
            together = max(together, alone)
            for _ in range(10):  # long enough for the relay to claim more
                await rows(mailroom)
            effect(context, f"{event.amount} at attempt {context.attempt}")
            alone -= 1

        mailroom = await compose(handlers, outbox_on=True)
        await publish(mailroom, 1, 2, 3)
        await self.leases(mailroom).claim(Kind.INTEGRATION, 5)
        await expire_leases(mailroom)
        await publish(mailroom, 4)
        await mailroom.drain()
        assert together == 1
        assert await effects(mailroom) == [*(f"{amount} at attempt 2" for amount in (1, 2, 3)), "4 at attempt 1"]
        assert [row.attempts for row in await rows(mailroom)] == [1, 1, 1, 0]

    async def test_a_row_that_may_have_killed_its_relay_is_alone_among_both_kinds(self, compose: Compose) -> None:
        in_flight: set[str] = set()
        beside_a_suspect: list[str] = []

        async def watch(name: str) -> None:
            in_flight.add(name)
            for _ in range(10):  # long enough for the relay to claim more
                await rows(mailroom)
                if "suspect" in in_flight:
                    beside_a_suspect.extend(in_flight - {"suspect"})
            in_flight.discard(name)

        handlers = Handlers()

        @handlers.on(Deposited)
        async def watch_suspect(event: Deposited, context: Context[Any]) -> None:
            await watch("suspect")

        @handlers.on(Renamed)
        async def watch_other(event: Renamed, context: Context[Any]) -> None:
            await watch(event.new_name)

        mailroom = await compose(handlers, outbox_on=True, outbox={"batch_size": 1})
        await publish(mailroom, 1)
        await self.leases(mailroom).claim(Kind.INTEGRATION, 1)
        await expire_leases(mailroom)
        async with mailroom.transaction() as session:
            for name in "abc":
                mailroom.publish(session, Renamed(new_name=name))
        assert await mailroom.drain() == 4
        assert beside_a_suspect == []

    async def test_a_row_that_kills_its_relay_every_time_is_dead_lettered_and_its_neighbours_are_not_charged_again(
        self, compose: Compose
    ) -> None:
        mailroom = await compose(noting_attempts(), outbox_on=True, outbox={"max_attempts": 3})
        await publish(mailroom, 1, 2)
        leases = self.leases(mailroom)
        await leases.claim(Kind.INTEGRATION, 5)
        for _ in range(2):
            await expire_leases(mailroom)
            assert (killer := await leases.take_over(Kind.INTEGRATION)) is not None
            assert killer.id == 1
            await change_rows(mailroom, OutboxMessage.id == 2, locked_until=mailroom.database.claims.later(60))
        await expire_leases(mailroom)
        await mailroom.drain()
        killing, neighbour = await rows(mailroom)
        assert killing.dead_lettered_on is not None
        assert killing.attempts == 3
        assert "stopped without finishing" in str(killing.last_error)
        assert neighbour.processed_on is not None
        assert neighbour.attempts == 1


class TestOrder:
    async def test_a_key_is_claimed_by_its_oldest_unprocessed_row_alone(self, compose: Compose) -> None:
        mailroom = await compose(outbox_on=True)
        await publish(mailroom, 1, 2, key="a")
        await publish(mailroom, 3, 4, key="b")
        await publish(mailroom, 5)
        leases = Leases(mailroom.database, lease_seconds=60)
        assert [one.id for one in await leases.claim(Kind.INTEGRATION, 10)] == [1, 3, 5]
        assert await leases.claim(Kind.INTEGRATION, 10) == []
        await expire_leases(mailroom)
        assert await leases.claim(Kind.INTEGRATION, 10) == []

    async def test_a_failing_event_holds_back_its_successors_until_it_is_dead_lettered(self, compose: Compose) -> None:
        mailroom = await compose(
            noting_attempts(lambda amount: ValueError("no luck") if amount == 1 else None),
            outbox_on=True,
            outbox={"max_attempts": 2},
        )
        await publish(mailroom, 1, 2, 3, key="a")
        await publish(mailroom, 4, key="b")
        await mailroom.drain()
        assert await effects(mailroom) == ["4 at attempt 1"]
        await make_due(mailroom)
        await mailroom.drain()
        assert await effects(mailroom) == ["4 at attempt 1", "2 at attempt 1", "3 at attempt 1"]

    async def test_the_successor_follows_at_once_and_not_at_the_next_poll(self, compose: Compose) -> None:
        mailroom = await compose(noting_attempts(), outbox_on=True, outbox={"polling_interval_seconds": 3600})
        async with started(mailroom.processor):
            await publish(mailroom, 1, 2, 3, key="a")

            async def are_stamped() -> bool:
                return all(row.processed_on for row in await rows(mailroom))

            await until(are_stamped)
        assert await effects(mailroom) == [f"{amount} at attempt 1" for amount in (1, 2, 3)]

    async def test_order_is_per_kind(self, compose: Compose) -> None:
        mailroom = await compose(outbox_on=True)
        async with mailroom.transaction() as session:
            mailroom.publish(session, Renamed(new_name="x"), ordering_key="a")
            mailroom.publish(session, Deposited(amount=1), ordering_key="a")
        leases = Leases(mailroom.database, lease_seconds=60)
        assert [one.id for one in await leases.claim(Kind.INTEGRATION, 10)] == [2]


async def test_replaying_a_row_that_a_relay_holds_is_refused(compose: Compose) -> None:
    mailroom = await compose(outbox_on=True)
    await publish(mailroom, 1, 2)
    (held, *_) = await Leases(mailroom.database, lease_seconds=60).claim(Kind.INTEGRATION, 1)
    result = await mailroom.outbox.replay(Selection(ids=[1, 2, 99]))
    assert (result.rows, result.held, result.missing) == (1, (1,), (99,))
    assert (await rows(mailroom))[0].lock_token == held.token
