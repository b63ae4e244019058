"""Contract I9 over Azure Service Bus: each committed event has its effects once, whatever happens to the namespace.

Producers, relays and consumers are killed at named and at random moments; connections are dropped, locks run out, the
service is busy, refuses, restarts and is away for a while.
"""

from random import Random

import pytest
from bus_servicebus import ServiceBusBus
from chaos import MakeChaos
from chaos_plan import plan
from crew import Hire
from own_proxy import OwnProxy
from servicebus.double import Double


@pytest.mark.timeout(0)  # as the chaos test
def test_every_committed_event_has_its_effects_once_over_service_bus(
    double: Double, hire: Hire, make_chaos: MakeChaos, soak_events: int, soak_kills: int, seed: int
) -> None:
    with OwnProxy(f"amqp://127.0.0.1:{double.ports['amqp']}") as proxy:
        bus = ServiceBusBus(double, proxy)
        chaos = make_chaos(bus, soak_events)
        chaos.start(hire(6))
        chaos.rage(plan(chaos.events, soak_kills, Random(seed), faults=bus.faults, outages=list(bus.outages)))
        chaos.calm_down()
        print(dict(bus.happened))
        chaos.each_event_had_its_effects_once()
    assert sum(died.total() for died in chaos.died.values()) >= soak_kills
