"""One receiver of the client on the service's queue (contract F12).

Each of its calls reads the connection until its own answer comes, and two at once hold each other up. So they take
turns, and while messages are in hand nobody waits long for new ones.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.exceptions import MessageLockLostError

from mailroom.errors import TransportUnavailableError
from mailroom.log import get_logger
from mailroom.messaging.transports.azure_service_bus.namespace import Namespace
from mailroom.messaging.transports.azure_service_bus.refusals import (
    FAILURES,
    LockLostError,
    describe,
    while_connecting,
)
from mailroom.service import is_being_cancelled

logger = get_logger(__name__)

T = TypeVar("T")

ANSWER_SECONDS = 15.0
"""How long the service may take to settle a message or to renew a lock, with one retry of the client."""
SILENCE_SECONDS = 20.0
"""After so long without a word the service is asked for one: the client does not notice a connection that is dead."""
CLOSE_SECONDS = 5.0
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
        self._heard_at = time.monotonic()

    async def open(self) -> None:
        """Raises TransportUnavailableError; then it can be tried again, and what came before can still be settled."""
        try:
            await self._receiver.__aenter__()
        except FAILURES as error:
            raise while_connecting(error, self._host) from error

    async def take(self, count: int, *, seconds: float) -> list[ServiceBusReceivedMessage]:
        """Up to so many, as soon as there are any; none if none came. Raises TransportUnavailableError."""
        if time.monotonic() - self._heard_at > SILENCE_SECONDS:
            await self._ask_for_a_word()
        return await self._call(
            lambda: self._receiver.receive_messages(max_message_count=count, max_wait_time=seconds), waits=seconds
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
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._receiver.close()
        except Exception as error:  # of a connection that is broken: whatever breaks next
            logger.debug("a receiver was not closed properly", reason=describe(error))
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise

    async def _ask_for_a_word(self) -> None:
        try:
            await self.peek(1, after=0)
        except TransportUnavailableError as error:
            self.loss = str(error)
            raise

    async def _call(self, ask: Callable[[], Awaitable[T]], *, waits: float | None = None) -> T:
        """`waits` is for how long it may bring nothing, which says nothing about the connection."""
        within = ANSWER_SECONDS + (waits or 0)
        async with self._turn:
            if self.loss is not None:
                raise TransportUnavailableError(self.loss)
            try:
                async with asyncio.timeout(within):
                    answer = await ask()
            except MessageLockLostError as error:
                raise LockLostError(describe(error)) from error
            except TimeoutError as error:
                self.loss = f"{self._host} gave no answer within {within:g} seconds"
                raise TransportUnavailableError(self.loss) from error
            except FAILURES as error:
                raise while_connecting(error, self._host) from error
            if waits is None or answer:
                self._heard_at = time.monotonic()
            return answer
