"""The administration API of the double: entities are made, described, changed, listed, counted and deleted."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.exceptions import MessagingEntityNotFoundError
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleFilter, TrueRuleFilter
from servicebus.double import Double
from servicebus_lines import client_of, opened

pytestmark = pytest.mark.asyncio(loop_scope="module")

Administration = ServiceBusAdministrationClient


@pytest_asyncio.fixture(loop_scope="module")
async def administration(double: Double) -> AsyncIterator[Administration]:
    """With no entities, before and after."""
    async with double.administration() as one:
        yield one
        async for queue in one.list_queues():
            await one.delete_queue(queue.name)
        async for topic in one.list_topics():
            await one.delete_topic(topic.name)


async def test_a_queue_is_what_it_was_made_to_be_and_has_defaults(administration: Administration) -> None:
    await administration.create_queue(
        "Orders",
        lock_duration=timedelta(seconds=30),
        max_delivery_count=7,
        requires_duplicate_detection=True,
        user_metadata="<ours> & theirs",
    )
    for name in ("Orders", "orders"):
        queue = await administration.get_queue(name)
        assert (queue.lock_duration, queue.max_delivery_count) == (timedelta(seconds=30), 7)
        assert queue.requires_duplicate_detection
        assert queue.user_metadata == "<ours> & theirs"
        assert not queue.dead_lettering_on_message_expiration
        assert queue.duplicate_detection_history_time_window == timedelta(minutes=10)
        assert queue.forward_to is None
    assert [each.name async for each in administration.list_queues()] == ["Orders"]


async def test_an_update_changes_what_it_says(administration: Administration, double: Double) -> None:
    queue = await administration.create_queue("orders", max_delivery_count=7)
    queue.max_delivery_count = 1
    queue.lock_duration = timedelta(seconds=5)
    await administration.update_queue(queue)
    changed = await administration.get_queue("orders")
    assert (changed.max_delivery_count, changed.lock_duration) == (1, timedelta(seconds=5))
    async with opened(double, "orders") as orders:
        await orders.send("one")
        await orders.receiver.abandon_message(await orders.receive_one())
        assert orders.held()["dead_letters"] == 1


async def test_a_topic_its_subscriptions_and_rules_are_made_listed_and_deleted(administration: Administration) -> None:
    await administration.create_queue("shop")
    await administration.create_topic("events", requires_duplicate_detection=True)
    subscription = await administration.create_subscription("events", "shop", forward_to="shop", max_delivery_count=3)
    assert (await administration.get_topic("events")).requires_duplicate_detection
    assert str(subscription.forward_to).endswith("/shop")
    assert (await administration.get_subscription("events", "shop")).max_delivery_count == 3
    assert [each.name async for each in administration.list_topics()] == ["events"]
    assert [each.name async for each in administration.list_subscriptions("events")] == ["shop"]
    wanted = CorrelationRuleFilter(label="sold", properties={"region": "north", "grade": 2})
    await administration.create_rule("events", "shop", "sold", filter=wanted)
    rules = {each.name: each.filter async for each in administration.list_rules("events", "shop")}
    assert set(rules) == {"$Default", "sold"}
    assert isinstance(rules["$Default"], TrueRuleFilter)
    assert (rules["sold"].label, rules["sold"].properties) == ("sold", {"region": "north", "grade": 2})
    await administration.delete_rule("events", "shop", "$Default")
    assert (await administration.get_rule("events", "shop", "sold")).filter.label == "sold"
    assert [each.name async for each in administration.list_rules("events", "shop")] == ["sold"]
    await administration.delete_subscription("events", "shop")
    await administration.delete_topic("events")
    assert [each.name async for each in administration.list_topics()] == []


async def test_a_rule_can_be_changed(administration: Administration) -> None:
    await administration.create_topic("events")
    await administration.create_subscription("events", "shop")
    rule = await administration.create_rule("events", "shop", "sold", filter=CorrelationRuleFilter(label="old"))
    rule.filter = CorrelationRuleFilter(label="new")
    await administration.update_rule("events", "shop", rule)
    assert (await administration.get_rule("events", "shop", "sold")).filter.label == "new"


async def test_what_is_there_cannot_be_made_and_what_is_not_cannot_be_had(administration: Administration) -> None:
    await administration.create_topic("events")
    await administration.create_subscription("events", "shop")
    for make in (
        administration.create_topic("events"),
        administration.create_queue("events"),
        administration.create_subscription("events", "shop"),
        administration.create_rule("events", "shop", "$Default"),
    ):
        with pytest.raises(ResourceExistsError):
            await make
    for ask in (
        administration.get_queue("nowhere"),
        administration.get_subscription("events", "nowhere"),
        administration.get_rule("events", "shop", "nowhere"),
        administration.delete_queue("nowhere"),
        administration.create_subscription("nowhere", "shop"),
    ):
        with pytest.raises(ResourceNotFoundError):
            await ask


async def test_what_the_service_or_the_double_cannot_do_is_refused(administration: Administration) -> None:
    await administration.create_topic("events")
    await administration.create_subscription("events", "shop")
    with pytest.raises(HttpResponseError, match="SqlFilter"):
        await administration.create_rule("events", "shop", "sql", filter=SqlRuleFilter("grade > 2"))
    with pytest.raises(HttpResponseError, match="ForwardTo"):
        await administration.create_subscription("events", "lost", forward_to="nowhere")


async def test_a_wrong_key_administrates_nothing(double: Double) -> None:
    async with double.administration(double.connection_string_with("wrong")) as administration:
        with pytest.raises(ClientAuthenticationError):
            await administration.create_queue("orders")


async def test_messages_are_counted_as_active_dead_and_scheduled(
    administration: Administration, double: Double
) -> None:
    await administration.create_queue("orders")
    async with opened(double, "orders") as orders:
        await orders.send("1", "2", "3", "4")
        await orders.receiver.dead_letter_message(await orders.receive_one(), reason="no")
        await orders.receive_one()
        at = datetime.now(UTC) + timedelta(hours=1)
        await orders.sender.schedule_messages([ServiceBusMessage("5"), ServiceBusMessage("6")], at)
        counted = await administration.get_queue_runtime_properties("orders")
    assert counted.active_message_count == 3
    assert counted.dead_letter_message_count == 1
    assert counted.scheduled_message_count == 2
    assert counted.total_message_count == 6
    assert counted.size_in_bytes > 0
    assert counted.created_at_utc is not None


async def test_topics_and_subscriptions_are_counted_too(administration: Administration, double: Double) -> None:
    await administration.create_topic("events")
    await administration.create_subscription("events", "shop")
    async with client_of(double) as client, client.get_topic_sender("events") as sender:
        await sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        await sender.schedule_messages(ServiceBusMessage("3"), datetime.now(UTC) + timedelta(hours=1))
    topic = await administration.get_topic_runtime_properties("events")
    shop = await administration.get_subscription_runtime_properties("events", "shop")
    assert (topic.subscription_count, topic.scheduled_message_count) == (1, 1)
    assert (shop.active_message_count, shop.dead_letter_message_count) == (2, 0)


async def test_what_is_deleted_is_gone_for_those_who_use_it(administration: Administration, double: Double) -> None:
    await administration.create_queue("orders")
    async with opened(double, "orders") as orders:
        await administration.delete_queue("orders")
        with pytest.raises(MessagingEntityNotFoundError):
            await orders.receiver.receive_messages(1, max_wait_time=5)


async def test_a_long_list_comes_in_pages(administration: Administration) -> None:
    names = [f"queue-{number:03}" for number in range(120)]
    for name in names:
        await administration.create_queue(name)
    assert [each.name async for each in administration.list_queues()] == names
