"""Publishing in batches: what is published while one is under way goes together into the next (contract R3, R4).

The client's sender is for one caller at a time. A relay publishes hundreds of messages at once, so one task sends for
all of them.
"""

import asyncio
from collections import deque

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError

from mailroom.errors import ConnectionLostError, MailroomError, PublishError, TransportUnavailableError
from mailroom.log import get_logger
from mailroom.messaging.transports.azure_service_bus.namespace import Namespace
from mailroom.messaging.transports.azure_service_bus.refusals import (
    FAILURES,
    EntityMissingError,
    while_connecting,
    while_sending,
)
from mailroom.messaging.transports.azure_service_bus.topology import Preparation
from mailroom.service import end, is_being_cancelled

logger = get_logger(__name__)

CLOSE_SECONDS = 5.0
UNLIMITED = 2**31
"""Bytes, for a batch that is only measured."""

Waiting = tuple[ServiceBusMessage, "asyncio.Future[None]"]


class Publisher:
    """Hands messages to one topic or queue, and returns once the service has them."""

    def __init__(
        self,
        namespace: Namespace,
        entity: str,
        *,
        is_topic: bool,
        confirm_timeout_seconds: float,
        preparation: Preparation,
    ) -> None:
        """`preparation` makes what is published to."""
        self.problem: str | None = "not connected yet"
        """Why there is no connection; None while there is one."""
        self.lost = asyncio.Event()
        """Set while there is no connection."""
        self.lost.set()
        self._namespace = namespace
        self._entity = entity
        self._is_topic = is_topic
        self._confirm_timeout_seconds = confirm_timeout_seconds
        self._preparation = preparation
        self._sender: ServiceBusSender | None = None
        self._opening = asyncio.Lock()
        self._waiting: deque[Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Raises TransportUnavailableError if it is not there, ConfigurationError if it holds other things."""
        await self._open()

    async def send(self, message: ServiceBusMessage) -> None:
        """Returns once the service is answerable for the message. Raises what `Transport.publish` raises."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append((message, answer))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all(), name="broker batches")
        await answer

    async def close(self) -> None:
        """What is under way is told that the connection ended."""
        if self._sending is not None:
            await end([self._sending])
            self._sending = None
        await self._give_up("not connected")

    async def _send_all(self) -> None:
        under_way: list[Waiting] = []
        try:
            while self._waiting:
                try:
                    sender = await self._open()
                    batch, under_way = await self._next_batch(sender)
                except (*FAILURES, MailroomError) as error:
                    self._tell_all(self._of_connecting(error))
                    continue
                await self._send_batch(sender, batch, under_way)
                under_way = []
        finally:
            _tell(under_way, ConnectionLostError("the connection was closed while the message was in flight"))
            self._tell_all(TransportUnavailableError("the connection was closed before the message was sent"))

    async def _next_batch(self, sender: ServiceBusSender) -> tuple[ServiceBusMessageBatch | None, list[Waiting]]:
        """As many as there is room for. One that has no room even in an empty batch goes alone, without a batch."""
        batch = await sender.create_message_batch()
        taken: list[Waiting] = []
        while self._waiting:
            message, answer = self._waiting[0]
            if not answer.done():
                try:
                    batch.add_message(message)
                except MessageSizeExceededError:
                    if taken:
                        break
                    return None, [self._waiting.popleft()]
                except Exception as error:  # it cannot be written as AMQP
                    answer.set_exception(PublishError(f"the message cannot be written: {error}"))
                else:
                    taken.append((message, answer))
            self._waiting.popleft()
        return batch, taken

    async def _send_batch(
        self, sender: ServiceBusSender, batch: ServiceBusMessageBatch | None, of: list[Waiting]
    ) -> None:
        """Where several are refused together, each is tried alone: only the guilty one fails."""
        if not of:
            return
        error = await self._attempt(sender, batch if batch is not None and len(of) > 1 else of[0][0])
        if type(error) is PublishError and len(of) > 1:
            for one in of:
                error = await self._attempt(sender, one[0])
                _tell([one], error)
            return
        _tell(of, error)

    async def _attempt(
        self, sender: ServiceBusSender, what: ServiceBusMessage | ServiceBusMessageBatch
    ) -> MailroomError | None:
        try:
            await sender.send_messages(what, timeout=self._confirm_timeout_seconds)
        except MessageSizeExceededError as error:
            assert isinstance(what, ServiceBusMessage)
            return PublishError(
                f"the message has {size_of(what)} bytes, and {self._namespace.host} takes fewer: {error}; send a "
                "reference to what is large"
            )
        except FAILURES as error:
            translated = while_sending(error, self._namespace.host)
            if isinstance(translated, TransportUnavailableError):
                await self._give_up(str(translated))
                self._note(translated)
            return translated
        return None

    async def _open(self) -> ServiceBusSender:
        async with self._opening:
            if self._sender is not None:
                return self._sender
            await self._preparation()
            sender = self._namespace.sender(self._entity, is_topic=self._is_topic)
            try:
                await sender.create_message_batch()  # opens it
            except FAILURES as error:
                await _close(sender)
                raise self._of_connecting(error) from error
            except asyncio.CancelledError:
                await _close(sender)
                raise
            self._sender = sender
            self.problem = None
            self.lost.clear()
            return sender

    def _of_connecting(self, error: BaseException) -> MailroomError:
        translated = error if isinstance(error, MailroomError) else while_connecting(error, self._namespace.host)
        self._note(translated)
        return translated

    def _note(self, error: MailroomError) -> None:
        self.problem = str(error)
        if isinstance(error, EntityMissingError):
            self._preparation.forget()

    async def _give_up(self, problem: str) -> None:
        """The next message opens another link."""
        sender, self._sender = self._sender, None
        self.problem = problem
        self.lost.set()
        if sender is not None:
            await _close(sender)

    def _tell_all(self, error: MailroomError) -> None:
        waiting = list(self._waiting)
        self._waiting.clear()
        _tell(waiting, error)


def size_of(message: ServiceBusMessage) -> int:
    """In bytes, as it is counted against the service's limit."""
    alone = ServiceBusMessageBatch(max_size_in_bytes=UNLIMITED)
    alone.add_message(message)
    return alone.size_in_bytes


def _tell(waiting: list[Waiting], error: MailroomError | None) -> None:
    for _, answer in waiting:
        if answer.done():
            continue
        if error is None:
            answer.set_result(None)
        else:
            answer.set_exception(error)


async def _close(sender: ServiceBusSender) -> None:
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await sender.close()
    except (*FAILURES, TimeoutError):
        pass
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
