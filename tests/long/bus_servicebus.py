"""The double of Azure Service Bus under a chaos test, behind a proxy that swallows what is sent."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar

from arrivals import Arrival, arrival
from azure.servicebus import ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient
from bus import WAREHOUSE
from own_proxy import OwnProxy
from servicebus.double import Double

from mailroom.settings import ServiceBusSettings

QUEUE = f"{WAREHOUSE}.events"
TOPIC, TAP = ServiceBusSettings().topic, "tap"
LOCK_SECONDS = 5
"""So soon comes again what a killed process held."""
BUSY_SECONDS = 1.0
AWAY_SECONDS = 2.0
REFUSALS = 3
DRAIN_SECONDS = 1.0


class ServiceBusBus:
    provider = "azure_service_bus"
    outages: ClassVar = {"restart": "relay", "outage": "consumer"}

    def __init__(self, double: Double, proxy: OwnProxy) -> None:
        self.happened: Counter[str] = Counter()
        """How often what was done to it, how many locks ran out, and how many messages came back."""
        self._double = double
        amqp, administration = double.ports["amqp"], double.ports["administration"]
        through_the_proxy = proxy.url.removeprefix("amqp://")
        self.sections = {
            "service_bus": {
                "connection_string": double.connection_string.replace(f"127.0.0.1:{amqp}", through_the_proxy),
                "management_url": f"http://127.0.0.1:{administration}",
                "lock_seconds": LOCK_SECONDS,
            }
        }
        self._doing: dict[str, Callable[[], object]] = {
            "drop": double.drop_connections,
            "swallow and drop": proxy.swallow_and_cut,
            "expire locks": self._expire_locks,
            "be busy": lambda: double.throttle(BUSY_SECONDS),
            "refuse": lambda: double.refuse("amqp:internal-error", times=REFUSALS),
        }
        self.faults = tuple(self._doing)

    @property
    def is_running(self) -> bool:
        return True

    @property
    def waiting(self) -> dict[str, int]:
        held = self._double.held(QUEUE)
        self.happened["messages that came back"] = held["returned"]
        return {name: held[name] for name in ("active", "scheduled", "dead_letters")}

    def open_tap(self) -> None:
        async def subscribe() -> None:
            async with self._double.administration() as administration:
                await administration.create_subscription(TOPIC, TAP)

        asyncio.run(subscribe())

    def arrived(self) -> list[Arrival]:
        return asyncio.run(self._drained())

    def disturb(self, fault: str) -> None:
        self.happened[fault] += 1
        self._doing[fault]()

    @contextmanager
    def away(self, outage: str) -> Iterator[None]:
        self.happened[outage] += 1
        self._double.stop()
        yield
        self._double.restart(AWAY_SECONDS if outage == "outage" else 0)

    def _expire_locks(self) -> None:
        self.happened["locks that ran out"] += self._double.expire_locks(QUEUE)

    async def _drained(self) -> list[Arrival]:
        found: list[Arrival] = []
        async with (
            ServiceBusClient.from_connection_string(self._double.connection_string) as client,
            client.get_subscription_receiver(
                TOPIC, TAP, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE
            ) as receiver,
        ):
            while messages := await receiver.receive_messages(500, max_wait_time=DRAIN_SECONDS):
                found += [arrival(message.message_id, b"".join(message.body)) for message in messages]
        return found
