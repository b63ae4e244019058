"""What commands do with the broker of the composed service; they ask no database."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from mailroom.cli.composed import Composed
from mailroom.cli.output import refuse
from mailroom.host import Mailroom
from mailroom.messaging.transports.base import Broker

T = TypeVar("T")


class OnBroker:
    """`on_broker(work)` lets `work` have the broker, and disconnects from it."""

    def __init__(self, mailroom: Callable[[], Mailroom], *, otherwise: str) -> None:
        """`otherwise` is what there is instead where there is no broker."""
        self._composed = Composed(mailroom)
        self._otherwise = otherwise

    def __call__(self, work: Callable[[Broker], Awaitable[T]]) -> T:
        """Exits with 2 where the transport is no broker that commands can look at."""

        async def connected(service: Mailroom) -> T:
            transport = service.transport
            if not isinstance(transport, Broker):
                refuse(f"message_bus.provider is {service.posture.provider}: there is no broker; {self._otherwise}")
            try:
                return await work(transport)
            finally:
                await service.transport.stop()

        return self._composed.without_database(connected)
