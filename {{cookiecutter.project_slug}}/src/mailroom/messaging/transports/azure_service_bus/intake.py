"""One receiver of the client on the service's queue (contract F12).

Each of its calls reads the connection until its own answer comes, and two at once hold each other up. So they take
turns, and while messages are in hand nobody waits long for new ones.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.exceptions import MessageLockLostError

from mailroom.errors import TransportUnavailableError
from mailroom.messaging.transports.azure_service_bus.namespace import Namespace
from mailroom.messaging.transports.azure_service_bus.refusals import (
    FAILURES,
    LockLostError,
    describe,
    while_connecting,
)
from mailroom.service import is_being_cancelled

T = TypeVar("T")

ANSWER_SECONDS = 15.0
"""How long the service may take to settle a message or to renew a lock, with one retry of the client."""
IDLE_SECONDS = 0.5
"""How long it waits for a message at most while none is in hand. A stop waits as long."""
BUSY_SECONDS = 0.05
"""As long while some are: what is to be settled or renewed waits for this."""


class Intake:
    """Takes messages, settles them, renews their locks. After a loss it is closed, and another one is opened."""

    def __init__(self, namespace: Namespace, queue: str, *, of_dead_letters: bool = False) -> None:
        self.loss: str | None = None
        self._host = namespace.host
        self._receiver = namespace.receiver(queue, of_dead_letters=of_dead_letters)
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        """Raises TransportUnavailableError; then it can be tried again, and what came before can still be settled."""
        try:
            await self._receiver.__aenter__()
        except FAILURES as error:
            raise while_connecting(error, self._host) from error

    async def take(self, count: int, *, seconds: float) -> list[ServiceBusReceivedMessage]:
        """Up to so many, as soon as there are any; none if none came. Raises TransportUnavailableError."""
        return await self._call(
            lambda: self._receiver.receive_messages(max_message_count=count, max_wait_time=seconds),
            within=seconds + ANSWER_SECONDS,
        )

    async def complete(self, message: ServiceBusReceivedMessage) -> None:
        """Raises LockLostError, or TransportUnavailableError if there is no answer."""
        await self._call(lambda: self._receiver.complete_message(message))

    async def abandon(self, message: ServiceBusReceivedMessage) -> None:
        """It comes again at once, to whoever asks next. Raises as `complete`."""
        await self._call(lambda: self._receiver.abandon_message(message))

    async def dead_letter(self, message: ServiceBusReceivedMessage, *, reason: str, description: str) -> None:
        """Raises as `complete`."""
        await self._call(
            lambda: self._receiver.dead_letter_message(message, reason=reason, error_description=description)
        )

    async def renew(self, message: ServiceBusReceivedMessage) -> None:
        """It is this service's own for as long again as the queue says. Raises as `complete`."""
        await self._call(lambda: self._receiver.renew_message_lock(message, timeout=ANSWER_SECONDS / 2))

    async def peek(self, count: int, *, after: int) -> list[ServiceBusReceivedMessage]:
        """The next ones without locking them, by their sequence number. Raises TransportUnavailableError."""
        return await self._call(
            lambda: self._receiver.peek_messages(max_message_count=count, sequence_number=after + 1)
        )

    async def close(self) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._receiver.close()
        except FAILURES:
            pass
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise

    async def _call(self, ask: Callable[[], Awaitable[T]], *, within: float = ANSWER_SECONDS) -> T:
        async with self._turn:
            if self.loss is not None:
                raise TransportUnavailableError(self.loss)
            try:
                async with asyncio.timeout(within):
                    return await ask()
            except MessageLockLostError as error:
                raise LockLostError(describe(error)) from error
            except TimeoutError as error:
                self.loss = f"{self._host} gave no answer within {within:g} seconds"
                raise TransportUnavailableError(self.loss) from error
            except FAILURES as error:
                raise while_connecting(error, self._host) from error
