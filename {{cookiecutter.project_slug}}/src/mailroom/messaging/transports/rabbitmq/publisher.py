"""Publishing with confirms, many messages in flight over one channel (contract R3, R4, F1)."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from aiormq import Channel, spec
from aiormq.exceptions import AMQPChannelError, ChannelNotFoundEntity, DeliveryError

from mailroom.errors import ConnectionLostError, PublishError, TransportUnavailableError
from mailroom.messaging.transports.rabbitmq.link import LOST, Link, describe
from mailroom.service import is_being_cancelled


class Publisher:
    """Hands messages to the broker, and returns once it has confirmed them."""

    def __init__(self, link: Link, *, confirm_timeout_seconds: float, prepare: Callable[[], Awaitable[None]]) -> None:
        """`prepare` makes what is published to, before the first message of each connection."""
        self._link = link
        self._prepare = prepare
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()
        self._in_flight = _InFlight(confirm_timeout_seconds)

    async def open(self) -> None:
        """Raises TransportUnavailableError if the broker is not there, ConfigurationError if it holds other things."""
        await self._open()

    async def send(self, exchange: str, routing_key: str, body: bytes, properties: spec.Basic.Properties) -> bool:
        """Returns, once the broker is answerable for the message, whether a queue took it.

        Raises what `Transport.publish` raises: a loss of the connection, or of the channel with other messages on it,
        makes suspects of all that were in flight.
        """
        channel = self._channel
        if channel is None or channel.is_closed:
            channel = await self._open()
        self._in_flight.enter()
        try:
            answer = await channel.basic_publish(
                body, exchange=exchange, routing_key=routing_key, properties=properties, mandatory=True, wait=False
            )
        except DeliveryError as error:
            raise PublishError("the broker refused the message (a negative confirm)") from error
        except LOST as error:
            raise self._loss(error) from error
        except asyncio.CancelledError as error:
            is_overdue = self._in_flight.is_overdue()
            if is_being_cancelled():
                raise
            if not is_overdue:
                raise self._loss(error) from error
            await self._link.close()
            raise ConnectionLostError(
                f"the broker did not confirm the message within {self._in_flight.bound_seconds:g} seconds "
                "(rabbitmq.confirm_timeout_seconds)"
            ) from error
        finally:
            self._in_flight.leave()
        return isinstance(answer, spec.Basic.Ack)

    async def close(self) -> None:
        self._channel = None
        await self._link.close()

    async def _open(self) -> Channel:
        async with self._opening:
            if self._channel is None or self._channel.is_closed or not self._link.is_open:
                await self._prepare()
                self._channel = await self._link.channel(confirms=True)
            return self._channel

    def _loss(self, error: BaseException) -> Exception:
        """Only the channel went, and nothing else was on it: then it is this message's own doing."""
        if isinstance(error, ChannelNotFoundEntity):
            return TransportUnavailableError(f"what is published to is not there: {describe(error)}")
        if isinstance(error, AMQPChannelError) and len(self._in_flight) == 1:
            return PublishError(f"the broker closed the channel: {describe(error)}")
        return ConnectionLostError(f"the connection broke while the message was in flight: {describe(error)}")


class _InFlight:
    """`asyncio.timeout` for many tasks that share one bound, with a single timer: one for each costs too much."""

    def __init__(self, bound_seconds: float) -> None:
        self.bound_seconds = bound_seconds
        self._since: dict[asyncio.Task[Any], float] = {}
        self._overdue: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def enter(self) -> None:
        """From now on this task is cancelled once the bound is over."""
        loop = asyncio.get_running_loop()
        self._since[_this_task()] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self.bound_seconds, self._look)

    def leave(self) -> None:
        self._since.pop(_this_task(), None)
        if not self._since and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def is_overdue(self) -> bool:
        """Whether this task was cancelled for that. The cancellation is taken back; somebody else's stays.

        It has left then, and may take its time: it is cancelled only once.
        """
        task = _this_task()
        if task not in self._overdue:
            return False
        self._overdue.remove(task)
        self.leave()
        task.uncancel()
        return True

    def _look(self) -> None:
        """The tasks stand in the order in which they came, so the first that has time left is the next to look at."""
        loop = asyncio.get_running_loop()
        self._timer = None
        for task, since in self._since.items():
            if since + self.bound_seconds > loop.time():
                self._timer = loop.call_at(since + self.bound_seconds, self._look)
                return
            if task not in self._overdue:
                self._overdue.add(task)
                task.cancel()


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
