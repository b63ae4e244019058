"""The double of Azure Service Bus keeps, locks and gives up messages as the service does, seen by the real client."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusError,
)
from servicebus.double import Double
from servicebus_lines import Line, bodies, client_of, line, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def orders_line(double: Double) -> AsyncIterator[Line]:
    async with line(double, "orders") as one:
        yield one


@pytest.fixture
def orders(orders_line: Line) -> Iterator[Line]:
    """A queue that is empty before and after."""
    yield orders_line
    orders_line.double.empty(orders_line.name)


async def test_a_message_arrives_with_everything_that_was_said_of_it(orders: Line) -> None:
    sent = ServiceBusMessage(
        b"\x00\xff honey",
        message_id="m-1",
        subject="placed",
        content_type="application/json",
        correlation_id="c-1",
        reply_to="somebody",
        to="anybody",
        time_to_live=timedelta(hours=1),
        application_properties={"trace": "abc", "attempt": 3, "yes": True},
    )
    await orders.sender.send_messages(sent)
    got = await orders.receive_one()
    assert b"".join(got.body) == b"\x00\xff honey"
    assert (got.message_id, got.subject, got.correlation_id) == ("m-1", "placed", "c-1")
    assert (got.content_type, got.reply_to, got.to) == ("application/json", "somebody", "anybody")
    assert got.time_to_live == timedelta(hours=1)
    assert got.application_properties == {b"trace": b"abc", b"attempt": 3, b"yes": True}
    assert got.delivery_count == 0
    assert abs(got.enqueued_time_utc - datetime.now(UTC)) < timedelta(seconds=30)
    assert timedelta(seconds=30) < got.locked_until_utc - datetime.now(UTC) <= timedelta(seconds=60)


async def test_a_batch_of_small_and_large_messages_comes_apart_again(orders: Line) -> None:
    sizes = [1, 40_000, 200, 150_000, 0, 3]
    batch = await orders.sender.create_message_batch()
    for number, size in enumerate(sizes):
        batch.add_message(ServiceBusMessage(b"x" * size, message_id=str(number)))
    await orders.sender.send_messages(batch)
    await orders.send("single")
    got = await orders.receive(7)
    assert [len(b"".join(each.body)) for each in got] == [*sizes, 6]
    assert [each.message_id for each in got[:6]] == list("012345")


async def test_messages_come_in_the_order_of_their_sequence_numbers(orders: Line) -> None:
    await orders.send("1", "2")
    await orders.send("3")
    got = await orders.receive(3)
    assert bodies(got) == ["1", "2", "3"]
    assert [each.sequence_number - got[0].sequence_number for each in got] == [0, 1, 2]


async def test_what_is_locked_is_nobody_elses_and_what_is_completed_is_gone(orders: Line) -> None:
    await orders.send("one")
    got = await orders.receive_one()
    assert await orders.receiver.receive_messages(1, max_wait_time=0.3) == []
    assert (orders.held()["active"], orders.held()["locked"]) == (1, 1)
    await orders.receiver.complete_message(got)
    assert orders.held()["active"] == 0


async def test_what_is_abandoned_comes_back_and_counts_as_delivered(orders: Line) -> None:
    await orders.send("one", "two")
    await orders.receiver.abandon_message(await orders.receive_one())
    again = await orders.receive(2)
    assert [(str(each), each.delivery_count) for each in again] == [("one", 1), ("two", 0)]


async def test_what_was_delivered_too_often_is_a_dead_letter(double: Double) -> None:
    async with line(double, "impatient", max_delivery_count=2) as impatient:
        await impatient.send("one")
        for _ in range(2):
            await impatient.receiver.abandon_message(await impatient.receive_one())
        assert double.held("impatient")["dead_letters"] == 1
        (given_up,) = double.held("impatient/$DeadLetterQueue")["messages"]
        assert given_up["reason"] == "MaxDeliveryCountExceeded"


async def test_a_dead_letter_has_its_reason_and_can_be_received_and_completed(orders: Line) -> None:
    await orders.send("bad", subject="placed", application_properties={"k": "v"})
    got = await orders.receive_one()
    await orders.receiver.dead_letter_message(got, reason="undecodable", error_description="no JSON at all")
    assert (orders.held()["active"], orders.held()["dead_letters"]) == (0, 1)
    async with orders.client.get_queue_receiver("orders", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (dead,) = await receiver.receive_messages(1, max_wait_time=5)
        assert (str(dead), dead.subject) == ("bad", "placed")
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("undecodable", "no JSON at all")
        assert dead.application_properties[b"k"] == b"v"
        await receiver.abandon_message(dead)
        (dead,) = await receiver.receive_messages(1, max_wait_time=5)
        await receiver.complete_message(dead)
    assert orders.held()["dead_letters"] == 0


async def test_what_is_deferred_is_received_by_its_number_alone(orders: Line) -> None:
    await orders.send("later", "now")
    later = await orders.receive_one()
    await orders.receiver.defer_message(later)
    now = await orders.receive_one()
    assert str(now) == "now"
    await orders.receiver.complete_message(now)
    assert orders.held()["deferred"] == 1
    (deferred,) = await orders.receiver.receive_deferred_messages(later.sequence_number)
    assert str(deferred) == "later"
    await orders.receiver.complete_message(deferred)
    assert orders.held()["active"] == 0
    with pytest.raises(MessageNotFoundError):
        await orders.receiver.receive_deferred_messages(later.sequence_number)


async def test_a_lock_can_be_renewed_and_ends_if_it_is_not(double: Double) -> None:
    async with line(double, "short", lock_duration=timedelta(seconds=1)) as short:
        await short.send("one")
        got = await short.receive_one()
        first_until = got.locked_until_utc
        until_then = await short.receiver.renew_message_lock(got)
        assert until_then > first_until
        again = await short.receive_one()
        assert again.delivery_count == 1
        assert datetime.now(UTC) >= until_then
        with pytest.raises(MessageLockLostError):
            await short.receiver.complete_message(got)
        await short.receiver.complete_message(again)
        assert short.held()["active"] == 0


async def test_nothing_can_be_done_with_a_lock_that_is_lost(orders: Line) -> None:
    await orders.send("1", "2", "3", "4", "5")
    got = await orders.receive(5)
    assert orders.double.expire_locks("orders") == 5
    receiver = orders.receiver
    for act, message in zip(
        (
            receiver.complete_message,
            receiver.abandon_message,
            receiver.defer_message,
            receiver.dead_letter_message,
            receiver.renew_message_lock,
        ),
        got,
        strict=True,
    ):
        with pytest.raises(MessageLockLostError):
            await act(message)
    assert orders.held()["active"] == 5
    assert {each["delivery_count"] for each in orders.held()["messages"]} == {1}


async def test_what_is_received_and_deleted_is_gone_at_once(orders: Line) -> None:
    await orders.send("one")
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    async with orders.client.get_queue_receiver("orders", receive_mode=mode) as receiver:
        assert bodies(await receiver.receive_messages(1, max_wait_time=5)) == ["one"]
    assert orders.held()["active"] == 0


async def test_what_was_prefetched_and_not_looked_at_comes_back_uncounted(orders: Line) -> None:
    await orders.send("1", "2", "3")
    async with orders.client.get_queue_receiver("orders", prefetch_count=10) as receiver:
        (first,) = await receiver.receive_messages(1, max_wait_time=5)
        await receiver.complete_message(first)
        assert orders.held()["locked"] == 2
    assert bodies(again := await orders.receive(2)) == ["2", "3"]
    assert [each.delivery_count for each in again] == [0, 0]


async def test_a_scheduled_message_appears_at_its_time_and_not_before(orders: Line) -> None:
    at = datetime.now(UTC) + timedelta(seconds=1)
    await orders.sender.schedule_messages(ServiceBusMessage("by request"), at)
    await orders.send("by annotation", scheduled_enqueue_time_utc=at)
    assert (orders.held()["active"], orders.held()["scheduled"]) == (0, 2)
    got = await orders.receive(2)
    assert sorted(bodies(got)) == ["by annotation", "by request"]
    assert datetime.now(UTC) >= at


async def test_what_is_scheduled_can_be_cancelled_once(orders: Line) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    numbers = await orders.sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], at)
    await orders.sender.cancel_scheduled_messages(numbers[0])
    assert orders.held()["scheduled"] == 1
    with pytest.raises(ServiceBusError):
        await orders.sender.cancel_scheduled_messages(numbers[0])


async def test_a_peek_shows_what_is_there_in_any_state_and_locks_nothing(orders: Line) -> None:
    await orders.send("locked", "ready")
    await orders.sender.schedule_messages(ServiceBusMessage("scheduled"), datetime.now(UTC) + timedelta(hours=1))
    locked = await orders.receive_one()
    seen = await orders.receiver.peek_messages(10, sequence_number=locked.sequence_number)
    assert [(str(each), each.state.name) for each in seen] == [
        ("locked", "ACTIVE"),
        ("ready", "ACTIVE"),
        ("scheduled", "SCHEDULED"),
    ]
    assert orders.held()["locked"] == 1
    assert await orders.receiver.peek_messages(10, sequence_number=10_000) == []


async def test_what_has_lived_its_time_is_dropped_or_a_dead_letter(double: Double, orders: Line) -> None:
    await orders.send("short", time_to_live=timedelta(milliseconds=50))
    await until(lambda: orders.held()["active"] == 0)
    assert orders.held()["dead_letters"] == 0
    life = timedelta(milliseconds=50)
    async with line(
        double, "mortal", default_message_time_to_live=life, dead_lettering_on_message_expiration=True
    ) as mortal:
        await mortal.send("one")
        await until(lambda: mortal.held()["dead_letters"] == 1)
    assert double.held("mortal/$deadletterqueue")["messages"][0]["reason"] == "TTLExpiredException"


async def test_a_duplicate_is_swallowed_where_that_is_on_and_only_there(double: Double, orders: Line) -> None:
    async with line(double, "unique", requires_duplicate_detection=True) as unique:
        for queue in (unique, orders):
            await queue.send("one", "again", message_id="same")
            await queue.send("once more", message_id="same")
        await unique.send("other", message_id="other")
    assert [each["message_id"] for each in double.held("unique")["messages"]] == ["same", "other"]
    assert orders.held()["active"] == 3


async def test_a_message_larger_than_the_link_takes_fails_alone(orders: Line) -> None:
    batch = await orders.sender.create_message_batch()
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage(b"x" * 262_144))
    with pytest.raises(MessageSizeExceededError):
        await orders.sender.send_messages(ServiceBusMessage(b"x" * 262_144))
    await orders.send("small")
    assert [each["state"] for each in orders.held()["messages"]] == ["active"]


async def test_an_entity_that_is_not_there_is_not_found(double: Double) -> None:
    async with client_of(double) as client:
        for end in (client.get_queue_sender("nowhere"), client.get_subscription_receiver("no", "where")):
            with pytest.raises(MessagingEntityNotFoundError):
                await end.__aenter__()
            await end.close()


async def test_a_wrong_key_does_not_come_in(double: Double, orders: Line) -> None:
    wrong = double.connection_string_with("wrong")
    async with ServiceBusClient.from_connection_string(wrong, retry_total=0) as client:
        sender = client.get_queue_sender(orders.name)
        with pytest.raises(ServiceBusError) as caught:
            await sender.__aenter__()
        assert "Status code: 401" in str(caught.value.__context__ or caught.value)
        await sender.close()


async def test_a_receiver_that_waits_is_given_what_comes(orders: Line) -> None:
    waiting = asyncio.create_task(orders.receive_one())
    await asyncio.sleep(0)
    await orders.send("at last")
    assert str(await waiting) == "at last"
