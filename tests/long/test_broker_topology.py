"""What the management API of a real RabbitMQ tells about bindings, and that what is made there outlives a crash."""

from collections.abc import Iterator

import pytest
from own_rabbitmq import OwnRabbitMQ
from rabbitmq_broker import Placed, Shop
from rabbitmq_management import Api

from mailroom import Handlers

OLD = "shop.order-lost"


@pytest.fixture
def shop(node: OwnRabbitMQ) -> Iterator[Shop]:
    shop = Shop(node.url)
    shop.sections["rabbitmq"]["management_url"] = node.management_url
    yield shop
    shop.clear()


def states(shop: Shop) -> dict[str, str]:
    return {part["name"]: part["state"] for part in shop.json("topology", "show")["parts"]}


def bind(shop: Shop, event: str) -> None:
    async def work(channel: object) -> None:
        await channel.queue_bind(f"{shop.name}.events", shop.name, event)  # type: ignore[attr-defined]

    shop.on_channel(work)


def test_bindings_are_missing_then_there_then_unwanted_then_pruned(shop: Shop) -> None:
    assert set(states(shop).values()) == {"missing"}
    made = shop.json("topology", "apply")
    assert [part["name"] for part in made["made"]][-1] == Placed.event_name
    assert made["ensured"] == []
    assert set(states(shop).values()) == {"there"}
    assert shop("topology", "apply").stdout.strip() == "nothing was missing"
    bind(shop, OLD)
    assert states(shop)[OLD] == "unwanted"
    assert shop("topology", "prune", "--yes").stdout.strip() == "1 binding removed"
    assert set(states(shop).values()) == {"there"}


def test_a_service_that_handles_nothing_any_more_has_all_its_bindings_pruned(shop: Shop) -> None:
    shop("topology", "apply")
    shop.handlers = [Handlers()]
    assert states(shop)[Placed.event_name] == "unwanted"
    shop("topology", "prune", "--yes")
    assert states(shop) == {shop.name: "there"}


def test_the_double_of_the_framework_s_tests_answers_as_the_real_one(shop: Shop, node: OwnRabbitMQ) -> None:
    shop("topology", "apply")
    bind(shop, OLD)
    with Api.running() as api:
        api.bind(shop.name, f"{shop.name}.events", Placed.event_name, OLD)
        real = states(shop)
        shop.sections["rabbitmq"]["management_url"] = api.url
        assert states(shop) == real


def test_a_login_that_the_management_api_refuses_is_told_without_its_password(shop: Shop, node: OwnRabbitMQ) -> None:
    shop.sections["rabbitmq"]["management_url"] = node.management_url.replace("guest:guest", "anna:sesame")
    result = shop("topology", "prune", "--yes")
    assert result.exit_code == 2
    assert "refuses the login (401)" in result.stderr
    assert "sesame" not in result.output


def test_what_was_made_and_given_up_outlives_a_crash_of_the_broker(shop: Shop, node: OwnRabbitMQ) -> None:
    shop("topology", "apply")
    ids = shop.give_up("tea", "honey", "jam")
    node.kill()
    assert shop("dead-letters", "list").exit_code == 1
    assert shop("topology", "show").exit_code == 1
    node.start()
    assert set(states(shop).values()) == {"there"}
    assert [one["message_id"] for one in shop.json("dead-letters", "list")] == ids
    assert shop.json("dead-letters", "replay", "--all", "--yes")["replayed"] == 3
    node.restart()
    assert shop.count("events") == 3
