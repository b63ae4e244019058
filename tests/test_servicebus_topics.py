"""Topics of the double: what a rule lets through reaches the subscription, or the queue that it forwards to."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import CorrelationRuleFilter, FalseRuleFilter
from servicebus.double import Double
from servicebus_lines import bodies, client_of, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def administration(double: Double) -> AsyncIterator[ServiceBusAdministrationClient]:
    async with double.administration() as one:
        await one.create_topic("events")
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(double: Double) -> AsyncIterator[ServiceBusClient]:
    async with client_of(double) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def events(
    administration: ServiceBusAdministrationClient, client: ServiceBusClient
) -> AsyncIterator[ServiceBusSender]:
    async with client.get_topic_sender("events") as one:
        yield one


async def subscribe(
    administration: ServiceBusAdministrationClient, name: str, *filters: Any, **properties: Any
) -> None:
    """A subscription with these rules and no other."""
    await administration.create_subscription("events", name, **properties)
    for number, each in enumerate(filters):
        await administration.create_rule("events", name, f"rule-{number}", filter=each)
    await administration.delete_rule("events", name, "$Default")


def ids(double: Double, entity: str) -> list[str]:
    return [each["message_id"] for each in double.held(entity)["messages"]]


async def send(events: ServiceBusSender, message_id: str, **fields: Any) -> None:
    await events.send_messages(ServiceBusMessage("x", message_id=message_id, **fields))


async def test_a_new_subscription_gets_everything(
    double: Double, administration: ServiceBusAdministrationClient, events: ServiceBusSender
) -> None:
    await administration.create_subscription("events", "all")
    await send(events, "a", subject="placed")
    await send(events, "b")
    assert ids(double, "events/subscriptions/all") == ["a", "b"]


async def test_a_correlation_filter_wants_everything_that_it_names_to_be_equal(
    double: Double, administration: ServiceBusAdministrationClient, events: ServiceBusSender
) -> None:
    wanted = CorrelationRuleFilter(label="placed", properties={"region": "north", "grade": 1})
    await subscribe(administration, "choosy", wanted)
    await send(events, "right", subject="placed", application_properties={"region": "north", "grade": 1, "more": 1})
    await send(events, "subject", subject="Placed", application_properties={"region": "north", "grade": 1})
    await send(events, "value", subject="placed", application_properties={"region": "south", "grade": 1})
    await send(events, "type", subject="placed", application_properties={"region": "north", "grade": "1"})
    await send(events, "truth", subject="placed", application_properties={"region": "north", "grade": True})
    await send(events, "absent", subject="placed")
    assert ids(double, "events/subscriptions/choosy") == ["right"]


async def test_one_of_the_rules_is_enough_and_gives_one_copy(
    double: Double, administration: ServiceBusAdministrationClient, events: ServiceBusSender
) -> None:
    filters = (CorrelationRuleFilter(label="a"), CorrelationRuleFilter(label="b"), CorrelationRuleFilter(label="b"))
    await subscribe(administration, "either", *filters)
    await subscribe(administration, "none", FalseRuleFilter())
    batch = await events.create_message_batch()
    for subject in ("a", "b", "c"):
        batch.add_message(ServiceBusMessage("x", subject=subject, message_id=subject))
    await events.send_messages(batch)
    assert ids(double, "events/subscriptions/either") == ["a", "b"]
    assert ids(double, "events/subscriptions/none") == []


async def test_what_a_subscription_forwards_is_in_the_queue_and_can_be_dead_lettered_there(
    double: Double, administration: ServiceBusAdministrationClient, events: ServiceBusSender, client: ServiceBusClient
) -> None:
    await administration.create_queue("shop")
    await subscribe(administration, "shop", CorrelationRuleFilter(label="sold"), forward_to="shop")
    await send(events, "one", subject="sold")
    assert ids(double, "shop") == ["one"]
    assert ids(double, "events/subscriptions/shop") == []
    async with client.get_queue_receiver("shop") as receiver:
        (got,) = await receiver.receive_messages(1, max_wait_time=5)
        await receiver.dead_letter_message(got, reason="no")
    assert double.held("shop")["dead_letters"] == 1


async def test_a_subscription_is_received_from_and_has_dead_letters_of_its_own(
    administration: ServiceBusAdministrationClient, events: ServiceBusSender, client: ServiceBusClient
) -> None:
    await subscribe(administration, "own", CorrelationRuleFilter(label="own"))
    await send(events, "one", subject="own")
    async with client.get_subscription_receiver("events", "own") as receiver:
        (got,) = await receiver.receive_messages(1, max_wait_time=5)
        await receiver.dead_letter_message(got, reason="no")
    async with client.get_subscription_receiver("events", "own", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        dead = await receiver.receive_messages(1, max_wait_time=5)
    assert (bodies(dead), dead[0].dead_letter_reason) == (["x"], "no")


async def test_what_is_scheduled_on_a_topic_waits_there(
    double: Double, administration: ServiceBusAdministrationClient, events: ServiceBusSender
) -> None:
    await subscribe(administration, "patient", CorrelationRuleFilter(label="later"))
    at = datetime.now(UTC) + timedelta(seconds=0.5)
    (_, unwanted) = await events.schedule_messages(
        [ServiceBusMessage("x", subject="later", message_id=name) for name in ("kept", "cancelled")], at
    )
    await events.cancel_scheduled_messages(unwanted)
    assert ids(double, "events") == ["kept"]
    await until(lambda: ids(double, "events/subscriptions/patient") == ["kept"])
    assert datetime.now(UTC) >= at
