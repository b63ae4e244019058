"""Contract I9 over RabbitMQ: whatever is killed, cut off or restarted when, each committed event has its effects once.

Producers, relays and consumers are killed at named and at random moments, the broker is restarted and crashes, and
connections are cut in front of it.
"""

from random import Random

import pytest
from bus_rabbitmq import RabbitMQBus
from chaos import MakeChaos
from chaos_plan import plan
from crew import Hire
from own_proxy import OwnProxy
from own_rabbitmq import OwnRabbitMQ


@pytest.mark.timeout(0)  # what bounds it is that something has to happen all the time
def test_every_committed_event_has_its_effects_once_and_arrives_in_order(
    node: OwnRabbitMQ, hire: Hire, make_chaos: MakeChaos, chaos_events: int, chaos_kills: int, seed: int
) -> None:
    with OwnProxy(node.url) as proxy:
        bus = RabbitMQBus(node, proxy)
        chaos = make_chaos(bus, chaos_events)
        chaos.start(hire(6))
        chaos.rage(plan(chaos.events, chaos_kills, Random(seed), faults=bus.faults, outages=list(bus.outages)))
        chaos.calm_down()
        chaos.each_event_had_its_effects_once()
    assert sum(died.total() for died in chaos.died.values()) >= chaos_kills
    chaos.everybody_died_everywhere()
