"""Contract I9 over a broker: whatever is killed, cut off or restarted when, each committed event has its effects once.

Producers, relays and consumers are killed at named and at random moments, the broker is restarted and crashes, and
connections are cut in front of it. What the databases and a queue of the test's own say in the end is compared with
the orders: an order is there if, and only if, it was committed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import broker_deaths
import pytest
from broker_jobs import KEYED
from chaos import SHOP, WAREHOUSE, Chaos, plan
from crew import Hire
from evidence import Evidence
from own_proxy import OwnProxy
from own_rabbitmq import OwnRabbitMQ
from tap import Arrival, Tap

from mailroom.settings import RabbitMQSettings
from mailroom.testing.plugin import fresh_database

SKUS = [f"{how}-{number}" for how in (KEYED, "loose") for number in range(10)]
NAMED = {"producer": broker_deaths.PRODUCER, "relay": broker_deaths.RELAY, "consumer": broker_deaths.CONSUMER}


@pytest.fixture
def chaos(node: OwnRabbitMQ, tmp_path: Path, chaos_events: int, seed: int) -> Iterator[Chaos]:
    with ExitStack() as stack:
        databases = []
        for name in (SHOP, WAREHOUSE):
            folder = tmp_path / name
            folder.mkdir()
            url = stack.enter_context(fresh_database("postgres", folder))
            databases.append(Evidence.of_new_database(url, folder))
        proxy = stack.enter_context(OwnProxy(node.url))
        exchange = RabbitMQSettings().exchange
        yield Chaos(*databases, node, proxy, Tap(node.url, exchange), chaos_events, Random(seed))


@pytest.mark.timeout(0)  # what bounds it is that something has to happen all the time
def test_every_committed_event_has_its_effects_once_and_arrives_in_order(
    chaos: Chaos, hire: Hire, chaos_kills: int, seed: int
) -> None:
    chaos.start(hire(6), SKUS)
    chaos.rage(plan(chaos.events, chaos_kills, Random(seed)))
    chaos.calm_down()

    orders = chaos.shop.orders
    arrived = chaos.tap.drain()
    for role, died in chaos.died.items():
        print(f"{role}s died {died.total()} times: {dict(died)}")
    print(f"{len(arrived) - len(orders)} events arrived more than once")
    assert len(orders) == chaos.events
    assert chaos.warehouse.reservations == chaos.warehouse.receipts == dict.fromkeys(orders, 1)
    chaos.shop.nothing_is_left()
    chaos.warehouse.nothing_is_left()
    assert not any(chaos.queues.values()), chaos.queues

    first = first_arrivals(arrived)
    assert {one.order for one in first} == orders
    for sku, numbers in numbers_by_sku(first).items():
        if sku.startswith(KEYED):
            assert numbers == sorted(numbers), sku
    assert sum(died.total() for died in chaos.died.values()) >= chaos_kills
    for role, points in NAMED.items():
        assert points.keys() <= chaos.died[role].keys()


def first_arrivals(arrived: list[Arrival]) -> list[Arrival]:
    return list({one.message_id: one for one in reversed(arrived)}.values())[::-1]


def numbers_by_sku(arrived: list[Arrival]) -> dict[str, list[int]]:
    numbers = defaultdict(list)
    for one in arrived:
        numbers[one.sku].append(one.number)
    return numbers
