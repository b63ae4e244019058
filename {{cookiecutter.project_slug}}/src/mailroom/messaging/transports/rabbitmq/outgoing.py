"""What is published on one channel, until the broker has answered for it.

The client's own `basic_publish` is made for a message now and then: each takes a lock, several futures and timers.
A relay has hundreds in flight, so here their frames are handed over together, all of one turn of the loop, and a single
timer watches them. Confirms and returns are the client's: it finds whom to tell in `Channel.confirmations`.
"""

import asyncio
from functools import lru_cache
from typing import Any

from aiormq import Channel, spec
from aiormq.abc import ChannelFrame
from aiormq.exceptions import AMQPChannelError, ChannelNotFoundEntity
from pamqp.body import ContentBody
from pamqp.frame import marshal
from pamqp.header import ContentHeader


class OverdueError(Exception):
    """The broker did not answer for a message in time."""


class Outgoing:
    """Any number of messages in flight. Nobody else may publish on the channel: the broker numbers what comes."""

    def __init__(self, channel: Channel, *, bound_seconds: float) -> None:
        """`bound_seconds` is how long the broker may take to answer for a message."""
        self._channel = channel
        self._bound_seconds = bound_seconds
        self._loop = asyncio.get_running_loop()
        self._since: dict[asyncio.Future[Any], float] = {}
        self._frames: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        channel.closing.add_done_callback(self._end)

    def __len__(self) -> int:
        """How many messages are in flight."""
        return len(self._since)

    @property
    def is_closed(self) -> bool:
        return bool(self._channel.is_closed)

    async def publish(self, exchange: str, routing_key: str, body: bytes, properties: spec.Basic.Properties) -> bool:
        """Returns whether a queue took the message. It needs a message id, by which it is known if it comes back.

        Raises DeliveryError for a negative confirm and OverdueError for none; AMQPChannelError if the broker closed
        the channel while nothing else was on it, or because the exchange is not there; else ConnectionError.
        """
        channel, message_id = self._channel, properties.message_id
        assert message_id is not None
        frames = (
            _publish(exchange, routing_key, channel.number),
            marshal(ContentHeader(properties=properties, body_size=len(body)), channel.number),
            *(marshal(ContentBody(part), channel.number) for part in _parts(body, channel.max_content_size)),
        )
        if not self._frames:
            self._loop.call_soon(self._hand_over)
        self._frames += frames
        channel.delivery_tag += 1
        tag, answer = channel.delivery_tag, self._loop.create_future()
        channel.confirmations[tag] = answer
        channel.message_id_delivery_tag[message_id] = tag
        self._watch(answer)
        try:
            return isinstance(await answer, spec.Basic.Ack)
        finally:
            del self._since[answer]
            if channel.message_id_delivery_tag.get(message_id) == tag:
                del channel.message_id_delivery_tag[message_id]

    def _hand_over(self) -> None:
        frames, self._frames = self._frames, []
        self._channel.write_queue.put_nowait(ChannelFrame(payload=b"".join(frames), should_close=False))

    def _watch(self, answer: "asyncio.Future[Any]") -> None:
        self._since[answer] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._bound_seconds, self._look)

    def _look(self) -> None:
        """They stand in the order in which they were published, so the first that has time left is the next to see."""
        self._timer = None
        for answer, since in self._since.items():
            if since + self._bound_seconds > self._loop.time():
                self._timer = self._loop.call_at(since + self._bound_seconds, self._look)
                return
            if not answer.done():
                answer.set_exception(OverdueError())

    def _end(self, closing: "asyncio.Future[Any]") -> None:
        """The channel went. With many messages on it, nobody knows whose doing that was."""
        reason = None if closing.cancelled() else closing.exception()
        waiting = [answer for answer in self._since if not answer.done()]
        is_told = isinstance(reason, ChannelNotFoundEntity) or (
            isinstance(reason, AMQPChannelError) and len(waiting) == 1
        )
        for answer in waiting:
            answer.set_exception(reason if reason and is_told else ConnectionError(*(reason.args if reason else ())))


@lru_cache(maxsize=1024)
def _publish(exchange: str, routing_key: str, channel_number: int) -> bytes:
    """Which exchanges and event names there are does not change from message to message."""
    return marshal(spec.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=True), channel_number)


def _parts(body: bytes, size: int) -> list[bytes]:
    return [body[start : start + size] for start in range(0, len(body), size)]
