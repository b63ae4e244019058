"""What the double is told to do wrong, and that nothing is lost by it."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessageLockLostError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)
from servicebus.double import Double, RefusedError
from servicebus_lines import Line, bodies, line

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # The client does not close the socket of a connection that fails.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def orders_line(double: Double) -> AsyncIterator[Line]:
    async with line(double, "orders") as one:
        yield one


@pytest.fixture
def orders(double: Double, orders_line: Line) -> Iterator[Line]:
    """A queue that is empty before and after, of a double that does nothing wrong before and after."""
    yield orders_line
    double.clear_faults()
    double.empty(orders_line.name)


async def test_a_client_comes_back_after_its_connection_was_dropped(orders: Line) -> None:
    await orders.send("one")
    assert orders.double.drop_connections() == 2
    assert orders.double.state()["connections"] == 0
    await orders.send("two")
    assert bodies(await orders.receive(2)) == ["one", "two"]


async def test_a_lock_outlives_the_connection_that_it_was_taken_on(orders: Line) -> None:
    await orders.send("one")
    got = await orders.receive_one()
    orders.double.drop_connections()
    assert orders.held()["locked"] == 1
    await orders.receiver.complete_message(got)
    assert orders.held()["active"] == 0


async def test_what_was_not_given_to_a_dropped_receiver_is_given_to_the_next(orders: Line) -> None:
    waiting = asyncio.create_task(orders.receive_one())
    await asyncio.sleep(0)
    orders.double.drop_connections()
    await orders.send("one")
    assert str(await waiting) == "one"


async def test_a_restart_keeps_messages_and_loses_locks(orders: Line) -> None:
    await orders.send("locked", "ready")
    got = await orders.receive_one()
    orders.double.restart()
    held = orders.held()
    assert (held["active"], held["locked"]) == (2, 0)
    with pytest.raises(MessageLockLostError):
        await orders.receiver.complete_message(got)
    again = await orders.receive(2)
    assert [(str(each), each.delivery_count) for each in again] == [("locked", 1), ("ready", 0)]


async def test_nobody_gets_in_while_it_is_stopped(orders: Line) -> None:
    await orders.send("one")
    orders.double.stop()
    client = ServiceBusClient.from_connection_string(orders.double.connection_string, retry_total=0)
    async with client:
        sender = client.get_queue_sender("orders")
        with pytest.raises(ServiceBusError):
            await sender.__aenter__()
        await sender.close()
    orders.double.start()
    assert bodies(await orders.receive()) == ["one"]


async def test_connections_are_refused_until_they_are_no_more(orders: Line) -> None:
    orders.double.refuse_connections()
    orders.double.drop_connections()
    before = orders.double.state()
    client = ServiceBusClient.from_connection_string(orders.double.connection_string, retry_total=0)
    async with client:
        sender = client.get_queue_sender("orders")
        with pytest.raises(ServiceBusError):
            await sender.__aenter__()
        await sender.close()
    assert orders.double.state()["accepted"] == before["accepted"]
    orders.double.refuse_connections(False)
    await orders.send("one")
    assert bodies(await orders.receive()) == ["one"]


async def test_a_send_is_refused_with_the_condition_that_was_told_as_often_as_was_told(orders: Line) -> None:
    orders.double.refuse("amqp:resource-limit-exceeded", entity="orders", times=2, description="the queue is full")
    for _ in range(2):
        with pytest.raises(ServiceBusQuotaExceededError, match="the queue is full"):
            await orders.send("one")
    await orders.send("two")
    assert [each["state"] for each in orders.held()["messages"]] == ["active"]


async def test_a_refusal_for_one_entity_leaves_the_others_alone(orders: Line) -> None:
    orders.double.refuse("amqp:resource-limit-exceeded", entity="another", times=100)
    await orders.send("one")
    orders.double.refuse("amqp:resource-limit-exceeded", times=100)
    with pytest.raises(ServiceBusQuotaExceededError):
        await orders.send("two")
    assert orders.held()["active"] == 1


async def test_a_throttled_client_is_told_that_the_server_is_busy(double: Double, orders: Line) -> None:
    double.throttle(60)
    client = ServiceBusClient.from_connection_string(double.connection_string, retry_total=0)
    async with client, client.get_queue_sender("orders") as sender:
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(ServiceBusMessage("one"))
        assert orders.held()["active"] == 0
        double.throttle(0)
        await sender.send_messages(ServiceBusMessage("one"))
    assert orders.held()["active"] == 1


async def test_a_command_about_what_is_not_there_is_refused(double: Double) -> None:
    for command in (double.held, double.empty, double.expire_locks):
        with pytest.raises(RefusedError):
            command("nowhere")
