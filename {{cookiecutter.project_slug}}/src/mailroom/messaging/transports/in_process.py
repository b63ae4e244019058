"""The transport without a broker: publishing is handing the message to the handlers in this process."""

from mailroom.envelope import Message
from mailroom.messaging.consumer import Consumer
from mailroom.settings import Settings


class InProcessTransport:
    """One attempt per publish; what fails is retried by the relay alone (contract R0)."""

    name = "in_process"

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    async def start(self) -> None:
        """Nothing to connect."""

    async def stop(self) -> None:
        """Nothing to disconnect."""

    async def publish(self, message: Message, attempt: int) -> None:
        await self._consumer.consume(message, attempt)


def create(settings: Settings, consumer: Consumer) -> InProcessTransport:
    """For `message_bus.provider = "in_process"`."""
    return InProcessTransport(consumer)
