"""Contract I9 over a broker: whatever is killed, cut off or restarted when, each committed event has its effects once.

Producers, relays and consumers are killed at named and at random moments, the broker is restarted and crashes, and
connections are cut in front of it. What the databases and a queue of the test's own say in the end is compared with
the orders: an order is there if, and only if, it was committed.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest
from broker_jobs import KEYED, RECEIPT_EVERY
from chaos import NAMED, SHOP, WAREHOUSE, Chaos
from chaos_plan import plan
from crew import Hire
from evidence import Evidence
from own_proxy import OwnProxy
from own_rabbitmq import OwnRabbitMQ
from tap import Arrival, Tap

from mailroom.settings import RabbitMQSettings
from mailroom.testing.plugin import fresh_database

KEYED_SKUS = [f"{KEYED}-{number}" for number in range(10)]
SKUS = KEYED_SKUS + [f"loose-{number}" for number in range(10)]


@pytest.fixture
def chaos(node: OwnRabbitMQ, hire: Hire, tmp_path: Path, chaos_events: int, seed: int) -> Iterator[Chaos]:
    """It is over before the crew rests, since its threads listen to the crew."""
    with ExitStack() as stack:
        databases = []
        for name in (SHOP, WAREHOUSE):
            folder = tmp_path / name
            folder.mkdir()
            url = stack.enter_context(fresh_database("postgres", folder))
            databases.append(Evidence.of_new_database(url, folder))
        proxy = stack.enter_context(OwnProxy(node.url))
        exchange = RabbitMQSettings().exchange
        events = chaos_events - chaos_events % len(SKUS)
        chaos = Chaos(*databases, node, proxy, Tap(node.url, exchange), events, Random(seed))
        stack.callback(chaos.abandon)
        yield chaos


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
    assert chaos.warehouse.reservations == dict.fromkeys(orders, 1)
    with_receipt = chaos.shop.ask(f"SELECT id FROM orders WHERE number % {RECEIPT_EVERY} = 0")
    assert chaos.warehouse.receipts == dict.fromkeys(with_receipt, 1)
    chaos.shop.nothing_is_left()
    chaos.warehouse.nothing_is_left()
    assert not any(chaos.queues.values()), chaos.queues

    first = first_arrivals(arrived)
    assert {one.order for one in first} == orders
    numbers = numbers_by_sku(first)
    for sku in KEYED_SKUS:
        assert numbers[sku] == list(range(1, chaos.events // len(SKUS) + 1)), sku
    assert sum(died.total() for died in chaos.died.values()) >= chaos_kills
    for role, points in NAMED.items():
        assert points.keys() <= chaos.died[role].keys()


def first_arrivals(arrived: list[Arrival]) -> list[Arrival]:
    """In the order in which they came; whatever came again is left out."""
    first: dict[str, Arrival] = {}
    for one in arrived:
        first.setdefault(one.message_id, one)
    return list(first.values())


def numbers_by_sku(arrived: list[Arrival]) -> dict[str, list[int]]:
    numbers = defaultdict(list)
    for one in arrived:
        numbers[one.sku].append(one.number)
    return numbers
