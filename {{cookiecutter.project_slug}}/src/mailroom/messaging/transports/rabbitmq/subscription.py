"""One consumer on one channel, from its begin to its loss (contract F12)."""

import asyncio
from collections.abc import Callable
from typing import Any

from aiormq import Channel
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import ChannelNotFoundEntity

from mailroom.errors import TransportUnavailableError
from mailroom.messaging.transports.rabbitmq.link import LOST, describe
from mailroom.service import is_being_cancelled

SETTLE_SECONDS = 10.0
"""How long a consumer may take to end on a connection that may be dying."""


class Subscription:
    """Delivers to `take`, and settles. Once it is lost, what was not acknowledged comes again over another one."""

    def __init__(self, channel: Channel, queue: str, take: Callable[["Subscription", DeliveredMessage], None]) -> None:
        self.loss: str | None = None
        self.lost = asyncio.Event()
        self.changed = asyncio.Event()
        self.is_trusted = False
        self.is_wide = False
        self._is_closing = False
        self._channel = channel
        self._queue = queue
        self._take = take
        self._tag: str | None = None
        channel.on_consumer_cancel_callbacks.add(self._cancelled)
        channel.closing.add_done_callback(self._closed)

    async def begin(self, *, prefetch: int) -> None:
        """Raises TransportUnavailableError if there is no such queue."""
        try:
            await self._channel.basic_qos(prefetch_count=prefetch)
            answer = await self._channel.basic_consume(self._queue, self._deliver)
        except ChannelNotFoundEntity as error:
            raise TransportUnavailableError(
                f"there is no queue {self._queue}: {describe(error)}; with rabbitmq.declare_topology = false an "
                "operator has to make it"
            ) from error
        self._tag = answer.consumer_tag

    async def widen(self, prefetch: int) -> None:
        """From one message at a time to many. A limit holds for consumers that begin after it."""
        self.is_wide = True
        tag, self._tag = self._tag, None
        if tag is not None:
            await self._channel.basic_cancel(tag)
        await self.begin(prefetch=prefetch)

    def trust(self) -> None:
        if not self.is_trusted:
            self.is_trusted = True
            self.changed.set()

    async def acknowledge(self, tag: int | None) -> None:
        """What can no longer be acknowledged comes again; it never waits for a dead connection (F12)."""
        if self._channel.write_queue.full():
            self.lose("the connection takes nothing more")
            return
        try:
            await self._channel.basic_ack(tag or 0, wait=False)  # there is room, so it does not wait
        except LOST as error:
            self.lose(f"an acknowledgement did not get through: {describe(error)}")

    async def cancel(self) -> None:
        """No more is delivered."""
        if self._tag is None or self.loss is not None:
            return
        tag, self._tag = self._tag, None
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._channel.basic_cancel(tag)
        except (*LOST, TimeoutError, asyncio.CancelledError) as error:
            if is_being_cancelled():
                raise
            self.lose(f"the consumer could not be cancelled: {describe(error)}")

    async def close(self) -> None:
        self._is_closing = True
        self._channel.on_consumer_cancel_callbacks.discard(self._cancelled)
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._channel.close()
        except (*LOST, TimeoutError):
            pass

    def lose(self, reason: str) -> None:
        if self.loss is None:
            self.loss = reason
            self.lost.set()
            self.changed.set()

    async def _deliver(self, delivered: DeliveredMessage) -> None:
        if self.loss is None:
            self._take(self, delivered)

    def _cancelled(self, _frame: Any) -> None:
        self.lose(f"the broker cancelled the consumer: the queue {self._queue} was deleted, or moved")

    def _closed(self, closing: "asyncio.Future[Any]") -> None:
        error = None if closing.cancelled() else closing.exception()
        if self._is_closing:
            return
        self.lose(f"the channel was closed: {describe(error)}")
