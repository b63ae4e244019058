"""Testing a module of a service, without a broker to start and without waiting.

The database is a real one of the project's own kind: a file, or on a server that must be there.

    async def test_an_event_that_arrives_twice_counts_once(harness: Harness) -> None:
        event = OrderPlaced(order_id=order.id, sku="tea", quantity=2)
        assert await harness.deliver(event) is Outcome.HANDLED
        assert await harness.deliver(event) is Outcome.DUPLICATE

`mailroom.testing.plugin` brings the fixtures to pytest. Nothing here replaces the database or the consume path:
what a test sees is what the service does.
"""

from mailroom.messaging.consumer import Outcome
from mailroom.outbox.selection import State
from mailroom.testing.clock import Clock
from mailroom.testing.failures import Failures
from mailroom.testing.harness import Harness, migrated, raised_by

__all__ = ["Clock", "Failures", "Harness", "Outcome", "State", "migrated", "raised_by"]
