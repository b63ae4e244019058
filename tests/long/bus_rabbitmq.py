"""A node of RabbitMQ under a chaos test, behind a proxy that cuts connections."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from arrivals import Arrival
from bus import WAREHOUSE
from own_proxy import OwnProxy
from own_rabbitmq import OwnRabbitMQ
from tap import Tap

from mailroom.settings import RabbitMQSettings

QUEUES = [f"{WAREHOUSE}.{name}" for name in ("events", "dead-letters", "redelivery.0.5s")]


class RabbitMQBus:
    provider = "rabbitmq"
    faults = ("cut", "swallow and cut")
    outages: ClassVar = {"restart": "relay", "crash": "consumer"}

    def __init__(self, node: OwnRabbitMQ, proxy: OwnProxy) -> None:
        self._node = node
        self._proxy = proxy
        self._tap = Tap(node.url, RabbitMQSettings().exchange)
        self.sections = {"rabbitmq": {"url": proxy.url}}

    @property
    def is_running(self) -> bool:
        return self._node.is_running

    @property
    def waiting(self) -> dict[str, int]:
        """Those that a consumer holds do not count."""
        return {name: self._tap.count(name) for name in QUEUES}

    def open_tap(self) -> None:
        self._tap.open()

    def arrived(self) -> list[Arrival]:
        return self._tap.drain()

    def disturb(self, fault: str) -> None:
        if fault == "cut":
            self._proxy.cut()
        else:
            self._proxy.swallow_and_cut()

    @contextmanager
    def away(self, outage: str) -> Iterator[None]:
        if outage == "restart":
            self._node.stop()
        else:
            self._node.kill()
        yield
        self._node.start()
