"""Azure Service Bus beyond what all transports share: batches, locks, copies (contract R3, R4, I7, I8)."""

import asyncio
import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import uuid4

import databases
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusSender
from service_bus_support import Bus, transport_of
from support import Deposited, done, effect, effects, handling, note, until

from mailroom import Context
from mailroom.errors import PublishError
from mailroom.messaging.transports.azure_service_bus import wire
from mailroom.serialization import encode

pytestmark = [
    # What the databases differ in is tried by test_transport.py.
    pytest.mark.parametrize("database_url", databases.KINDS[:1], indirect=True),
    # The client does not close the socket of a connection that fails.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Run = Callable[..., Any]
LARGE = {"max_payload_bytes": 900_000}


@pytest.fixture
def sends(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages went in each send."""
    counts: list[int] = []
    send = ServiceBusSender.send_messages

    async def count(self: ServiceBusSender, message: Any, **how: Any) -> None:
        counts.append(len(message) if hasattr(message, "max_size_in_bytes") else 1)
        await send(self, message, **how)

    monkeypatch.setattr(ServiceBusSender, "send_messages", count)
    return counts


async def lying(bus: Bus, queue: str, count: int) -> list[ServiceBusReceivedMessage]:
    """What is in a queue, once there are so many."""
    found: list[ServiceBusReceivedMessage] = []

    async def are_there() -> bool:
        found[:] = await bus.lying(queue)
        return len(found) >= count

    await until(are_there)
    return found


async def listen(bus: Bus) -> str:
    """A queue that everything on the topic comes to."""
    queue = f"{bus.another_service()}.events"
    async with bus.administration() as administration:
        await administration.create_queue(queue)
        await administration.create_subscription(bus.topic, "everything", forward_to=queue)
    return queue


async def test_an_event_is_a_json_message_with_id_subject_and_headers(run_on_bus: Run, bus: Bus) -> None:
    sent = Deposited(amount=3)
    async with run_on_bus() as mailroom:
        queue = await listen(bus)
        async with mailroom.transaction() as session:
            mailroom.publish(session, sent, ordering_key="anna")
        (message,) = await lying(bus, queue, 1)
    assert json.loads(str(message)) == {"amount": 3, "account": "anna"}
    assert message.subject == "bank.deposited"
    assert message.message_id == str(sent.message_id)
    assert message.content_type == "application/json"
    headers = wire.headers(message)
    assert headers["mailroom-version"] == 1
    assert headers["mailroom-ordering-key"] == "anna"
    assert headers["mailroom-occurred-on"] == sent.occurred_on.isoformat()


async def test_what_is_published_at_once_goes_in_batches_and_in_order(
    run_on_bus: Run, bus: Bus, sends: list[int]
) -> None:
    async with run_on_bus() as mailroom:
        queue = await listen(bus)
        messages = [encode(Deposited(amount=amount, account="x" * 100 * amount)) for amount in range(100)]
        await asyncio.gather(*(mailroom.transport.publish(message, 1) for message in messages))
        found = await lying(bus, queue, 100)
    assert [message.message_id for message in found] == [str(message.message_id) for message in messages]
    assert sum(sends) == 100
    assert len(sends) <= 5  # half a megabyte, of which a batch holds a quarter


async def test_what_is_too_large_fails_alone_with_its_size_and_the_limit(run_on_bus: Run, bus: Bus) -> None:
    async with run_on_bus(**LARGE) as mailroom:
        queue = await listen(bus)
        amounts = [encode(Deposited(amount=n, account="x" * (300_000 if n == 5 else 10))) for n in range(10)]
        outcomes = await asyncio.gather(
            *(mailroom.transport.publish(message, 1) for message in amounts), return_exceptions=True
        )
        found = await lying(bus, queue, 9)
    (error,) = [outcome for outcome in outcomes if outcome is not None]
    assert outcomes[5] is error
    assert isinstance(error, PublishError)
    assert re.search(r"has 300\d{3} bytes.*\b262144\b", str(error))
    assert [json.loads(str(message))["amount"] for message in found] == [0, 1, 2, 3, 4, 6, 7, 8, 9]


async def test_a_redelivery_is_a_copy_with_the_same_id_and_what_it_has_been_through(run_on_bus: Run, bus: Bus) -> None:
    async def fail(event: Deposited, context: Context[Any]) -> None:
        raise ValueError("no luck")

    sent = Deposited(amount=1)
    async with run_on_bus(handling(fail), redelivery_intervals_seconds=[3600]) as mailroom:
        await mailroom.publish(sent)
        (copy,) = await lying(bus, bus.queue, 1)

        async def is_alone() -> bool:
            return len(await bus.lying()) == 1 and not len(transport_of(mailroom).receiver._holding)

        await until(is_alone)
        (copy,) = await bus.lying()
    headers = wire.headers(copy)
    assert copy.message_id == str(sent.message_id)
    assert copy.scheduled_enqueue_time_utc is not None
    assert (headers["mailroom-attempts"], headers["mailroom-redeliveries"]) == (2, 1)
    assert headers["mailroom-reason"] == "ValueError: no luck"


async def test_a_dead_letter_has_reason_exception_attempts_and_stack(run_on_bus: Run, bus: Bus) -> None:
    async def fail(event: Deposited, context: Context[Any]) -> None:
        raise ValueError("no luck")

    async with run_on_bus(handling(fail)) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        letters = transport_of(mailroom).dead_letters

        async def is_given_up() -> bool:
            return await letters.count() == 1

        await until(is_given_up)
        (letter,) = await letters.entries(with_payload=True)
    assert letter.reason == "ValueError: no luck"
    assert letter.exception == "builtins.ValueError"
    assert (letter.attempts, letter.redeliveries) == (4, 1)
    assert isinstance(letter.first_seen, datetime)
    assert letter.stack is not None
    assert "raise ValueError" in letter.stack


async def test_a_lock_is_renewed_as_long_as_its_handler_runs(run_on_bus: Run) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def take_a_while(event: Deposited, context: Context[Any]) -> None:
        begun.set()
        await go_on.wait()
        effect(context, str(event.amount))

    async with run_on_bus(handling(take_a_while), sections={"service_bus": {"lock_seconds": 5}}) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        await begun.wait()
        (held,) = transport_of(mailroom).receiver._holding._held
        first = held.locked_until

        async def is_renewed() -> bool:
            return held.locked_until > first

        await until(is_renewed)
        go_on.set()
        await done(mailroom, "1")


async def test_a_lock_is_not_renewed_for_ever(run_on_bus: Run, caplog: pytest.LogCaptureFixture) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def hang_once(event: Deposited, context: Context[Any]) -> None:
        first = not begun.is_set()
        begun.set()
        if first:
            await go_on.wait()
        effect(context, str(event.amount))

    bounds = {"lock_seconds": 5, "lock_renewal_limit_seconds": 0.1}
    async with run_on_bus(handling(hang_once), sections={"service_bus": bounds}) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        await begun.wait()
        await done(mailroom, "1")  # by the second delivery, once the lock of the first had run out
        go_on.set()
        await mailroom.publish(Deposited(amount=2))
        await done(mailroom, "1", "2")
    assert "service_bus.lock_renewal_limit_seconds = 0.1" in [getattr(one, "setting", None) for one in caplog.records]
    assert await effects(mailroom) == ["1", "2"]


async def test_what_is_no_message_is_dead_lettered_at_once_with_the_reason(run_on_bus: Run, bus: Bus) -> None:
    whole = {"message_id": str(uuid4()), "subject": "bank.deposited"}
    odd: dict[str, tuple[bytes, dict[str, Any]]] = {
        "no UTF-8": (b"\xff", {}),
        "content type": (b"{}", {"content_type": "text/plain"}),
        "foreign_messages": (b"{}", {"message_id": "17"}),
        "0 characters": (b"{}", {"subject": None}),
        "mailroom-version": (b"{}", {"application_properties": {"mailroom-version": "three"}}),
    }
    async with run_on_bus(handling(note), foreign_messages="refuse") as mailroom:
        async with bus.client() as client, client.get_queue_sender(bus.queue) as sender:
            await sender.send_messages([ServiceBusMessage(body, **whole | more) for body, more in odd.values()])
        letters = transport_of(mailroom).dead_letters

        async def are_given_up() -> bool:
            return await letters.count() == len(odd)

        await until(are_given_up)
        reasons = [letter.reason for letter in await letters.entries()]
    assert sorted(word for word in odd for reason in reasons if word in reason) == sorted(odd)


async def test_what_the_relay_still_sends_after_the_consumer_has_stopped_is_sent(run_on_bus: Run, bus: Bus) -> None:
    async with run_on_bus(handling(note)) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        await done(mailroom, "1")
        await mailroom.transport.receiver.stop()
        await mailroom.transport.publish(encode(Deposited(amount=2)), 1)
        assert len(await bus.lying()) == 1
