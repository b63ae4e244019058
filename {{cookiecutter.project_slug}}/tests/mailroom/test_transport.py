"""The contract of a transport, stated once and run over each of them (contract R0, R4, R6, I1-I9)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import transports
from support import Compose, Deposited, done, effect, effects, handling, inbox_ids, note, until
from transports import Carrier

from mailroom import Context, Handlers, Mailroom, Reject
from mailroom.envelope import Message
from mailroom.errors import UndecodableError
from mailroom.messaging import receiving
from mailroom.outbox import lane
from mailroom.serialization import encode

Run = Callable[..., Any]


@pytest.fixture(params=transports.PRESENT)
def carrier(request: pytest.FixtureRequest) -> Iterator[Carrier]:
    with transports.carrier(request.param) as one:
        yield one


@pytest.fixture
def run(compose: Compose, carrier: Carrier, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`async with run(handlers) as mailroom`: a service on the transport, running."""

    async def is_migrated(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr("mailroom.host.ensure_migrated", is_migrated)

    @asynccontextmanager
    async def running(*handlers: Handlers, **more: Any) -> AsyncIterator[Mailroom]:
        sections = {**carrier.settings, **more}
        sections["message_bus"] = {**carrier.settings["message_bus"], **more.get("message_bus", {})}
        mailroom = await compose(*handlers, **sections)
        async with mailroom.running():
            yield mailroom

    return running


async def given_up(carrier: Carrier, mailroom: Mailroom, count: int = 1) -> list[str]:
    """Waits for so many dead letters."""

    found: list[str] = []

    async def are_there() -> bool:
        found[:] = await carrier.given_up(mailroom)
        return len(found) >= count

    await until(are_there)
    return found


async def test_what_was_committed_is_handled_with_its_whole_envelope(run: Run) -> None:
    seen: list[tuple[Deposited, Context[Any]]] = []

    async def keep(event: Deposited, context: Context[Any]) -> None:
        seen.append((event, context))
        effect(context)

    sent = Deposited(amount=7, account="ännä 🎉")
    async with run(handling(keep)) as mailroom:
        async with mailroom.transaction() as session:
            mailroom.publish(session, sent)
        await done(mailroom, "")
        assert await inbox_ids(mailroom) == [sent.message_id]
    ((event, context),) = seen
    assert event == sent
    assert (event.message_id, event.occurred_on) == (sent.message_id, sent.occurred_on)
    assert (context.message_id, context.occurred_on) == (sent.message_id, sent.occurred_on)
    assert context.attempt == 1


async def test_what_follows_from_a_message_is_correlated_with_it(run: Run) -> None:
    chain: list[dict[str, str]] = []

    async def go_on(event: Deposited, context: Context[Any]) -> None:
        chain.append(dict(context.headers))
        effect(context)
        if event.amount:
            context.publish(Deposited(amount=event.amount - 1))

    first = Deposited(amount=2)
    async with run(handling(go_on)) as mailroom:
        await mailroom.publish(first)
        await done(mailroom, "", "", "")
    assert [headers.get("correlation_id") for headers in chain] == [None, str(first.message_id), str(first.message_id)]


async def test_many_are_handled_once_each_and_no_more_at_a_time_than_allowed(run: Run) -> None:
    busy, most = 0, 0

    async def count(event: Deposited, context: Context[Any]) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        effect(context, str(event.amount))
        await context.session.flush()
        busy -= 1

    async with run(handling(count), message_bus={"concurrency": 3}) as mailroom:
        async with mailroom.transaction() as session:
            for amount in range(100):
                mailroom.publish(session, Deposited(amount=amount))
        await done(mailroom, *map(str, range(100)))
    assert 1 <= most <= 3


async def test_a_message_that_is_published_twice_has_its_effects_once(run: Run, carrier: Carrier) -> None:
    async with run(handling(note)) as mailroom:
        twice = encode(Deposited(amount=1))
        await mailroom.transport.publish(twice, 1)
        await mailroom.transport.publish(twice, 1)
        await mailroom.publish(Deposited(amount=2))
        await done(mailroom, "1", "2")
        assert len(await inbox_ids(mailroom)) == 2
        assert await carrier.given_up(mailroom) == []


async def test_a_failing_message_is_tried_again_and_keeps_nothing_of_a_failed_try(run: Run) -> None:
    tries: list[int] = []

    async def fail_twice(event: Deposited, context: Context[Any]) -> None:
        effect(context, str(event.amount))
        await context.session.flush()
        tries.append(context.attempt)
        if len(tries) < 3:
            raise ValueError("no luck")

    async with run(handling(fail_twice)) as mailroom:
        await mailroom.publish(Deposited(amount=5))
        await done(mailroom, "5")
    assert tries == [1, 2, 3]


async def test_a_message_that_fails_for_good_is_given_up_visibly_and_the_others_go_on(
    run: Run, carrier: Carrier
) -> None:
    tries = 0

    async def fail_for_one(event: Deposited, context: Context[Any]) -> None:
        nonlocal tries
        if event.amount == 0:
            tries += 1
            raise ValueError("no luck")
        effect(context, str(event.amount))

    async with run(handling(fail_for_one)) as mailroom:
        for amount in range(3):
            await mailroom.publish(Deposited(amount=amount))
        await done(mailroom, "1", "2")
        assert await given_up(carrier, mailroom) == ["ValueError: no luck"]
    assert tries == 4  # twice in memory, put aside once, or four attempts of the relay


async def test_a_rejected_message_is_given_up_at_once(run: Run, carrier: Carrier) -> None:
    tries = 0

    async def refuse(event: Deposited, context: Context[Any]) -> None:
        nonlocal tries
        tries += 1
        raise Reject("we take no cash")

    async with run(handling(refuse)) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        assert await given_up(carrier, mailroom) == ["Reject: we take no cash"]
    assert tries == 1


def damaged(**changes: Any) -> Message:
    whole = encode(Deposited(amount=1))
    facts = {name: getattr(whole, name) for name in Message.__dataclass_fields__}
    return Message(**{**facts, **changes})


async def test_what_no_code_can_read_is_given_up_at_once(run: Run, carrier: Carrier) -> None:
    async with run(handling(note)) as mailroom:
        try:
            await mailroom.transport.publish(damaged(payload="{"), 1)
        except UndecodableError:
            assert not carrier.features.redelivers_itself  # the relay is told, and gives up the row
        else:
            (reason,) = await given_up(carrier, mailroom)
            assert reason.startswith("UndecodableError")
        await mailroom.publish(Deposited(amount=2))
        await done(mailroom, "2")


async def test_poison_as_much_as_the_window_holds_does_not_keep_the_others_back(run: Run) -> None:
    async def fail_below_ten(event: Deposited, context: Context[Any]) -> None:
        if event.amount < 10:
            raise ValueError("no luck")
        effect(context, str(event.amount))

    slow = {
        "prefetch": 10,
        "retry_limit": 5,
        "retry_min_interval_seconds": 3600,
        "retry_max_interval_seconds": 3600,
        "redelivery_intervals_seconds": [60],
    }
    small = {"batch_size": 10, "retention_days": 0}
    async with run(handling(fail_below_ten), message_bus=slow, outbox=small) as mailroom:
        for amount in range(20):
            await mailroom.publish(Deposited(amount=amount))
        await done(mailroom, *map(str, range(10, 20)))


async def test_what_is_in_flight_is_finished_by_a_stop(run: Run) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def take_a_while(event: Deposited, context: Context[Any]) -> None:
        begun.set()
        await go_on.wait()
        effect(context, str(event.amount))

    async with run(handling(take_a_while)) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        await begun.wait()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
    async with mailroom.reader():
        assert await effects(mailroom) == ["1"]


async def test_what_a_stop_cuts_short_is_undone_and_comes_again_without_being_charged(run: Run) -> None:
    begun = asyncio.Event()
    attempts: list[int] = []

    async def hang_once(event: Deposited, context: Context[Any]) -> None:
        attempts.append(context.attempt)
        effect(context, str(event.amount))
        await context.session.flush()
        if len(attempts) == 1:
            begun.set()
            await asyncio.Event().wait()

    handlers = handling(hang_once)
    async with run(handlers, shutdown_timeout_seconds=0.1) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        await begun.wait()
    assert await effects(mailroom) == []
    async with run(handlers) as again:
        await done(again, "1")
    assert attempts == [1, 1]


async def test_a_handler_that_swallows_its_cancellation_does_not_hold_up_a_stop(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (lane, receiving):
        monkeypatch.setattr(module, "UNDOING_SECONDS", 0.05)
    begun = asyncio.Event()

    async def hold_on(event: Deposited, context: Context[Any]) -> None:
        effect(context, str(event.amount))
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async with run(handling(hold_on), shutdown_timeout_seconds=0.1) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        await begun.wait()
    assert await effects(mailroom) == []


async def test_what_waits_for_its_turn_is_given_back_by_a_stop(run: Run) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    async def take_turns(event: Deposited, context: Context[Any]) -> None:
        attempts.append(context.attempt)
        begun.set()
        await go_on.wait()
        effect(context, str(event.amount))

    handlers, one = handling(take_turns), {"concurrency": 1}
    async with run(handlers, message_bus=one) as mailroom:
        for amount in range(5):
            await mailroom.publish(Deposited(amount=amount))
        await begun.wait()
        asyncio.get_running_loop().call_later(0.1, go_on.set)
    assert len(await effects(mailroom)) == 1
    async with run(handlers, message_bus=one) as again:
        await done(again, *map(str, range(5)))
    assert attempts == [1] * 5
