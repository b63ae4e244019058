"""What operators do with messages that were given up: look, replay, discard (contract I7)."""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from aiormq import Channel, spec
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import ChannelNotFoundEntity

from mailroom.errors import ConfigurationError, TransportUnavailableError
from mailroom.messaging.transports.rabbitmq import wire
from mailroom.messaging.transports.rabbitmq.link import LOST, Link, describe
from mailroom.messaging.transports.rabbitmq.publisher import Publisher
from mailroom.messaging.transports.rabbitmq.topology import Topology

BY_THE_BROKER = {
    "delivery_limit": "delivered too often without an answer: its handler may kill the process",
    "expired": "expired",
    "maxlen": "the queue was full",
    "rejected": "rejected",
}
"""What the broker calls its own reasons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One message that was given up, as it lies in the queue."""

    message_id: str | None
    event_type: str
    reason: str
    exception: str | None
    attempts: int
    redeliveries: int
    first_seen: datetime | None
    size: int
    """Of the payload, in bytes."""
    headers: dict[str, Any]
    payload: str | None = None
    """None unless it was asked for: it may hold personal data."""
    stack: str | None = None


class DeadLetters:
    """The dead-letter queue of one service. Safe to interrupt: a message leaves it only once it is elsewhere."""

    def __init__(self, topology: Topology, link: Link, publisher: Publisher) -> None:
        self._topology = topology
        self._link = link
        self._publisher = publisher

    async def count(self) -> int:
        """How many there are. Raises ConfigurationError if there is no such queue."""
        channel = await self._link.channel()
        try:
            answer = await channel.queue_declare(self._topology.dead_letters, passive=True)
        except ChannelNotFoundEntity:
            raise self._absent() from None
        await channel.close()
        return answer.message_count or 0

    async def entries(self, *, limit: int, ids: Collection[str] = (), with_payload: bool = False) -> list[DeadLetter]:
        """The oldest ones, or those with these message ids. They stay where they are."""
        found = []
        async for delivered in self._each():
            if not ids or _id(delivered) in ids:
                found.append(_entry(delivered, with_payload=with_payload))
            if len(found) >= limit:
                break
        return found

    async def replay(self, ids: Collection[str] = (), progress: Callable[[int], None] = lambda count: None) -> int:
        """Puts these, or all of them, back into the service's queue, with all attempts before them."""

        async def back(delivered: DeliveredMessage) -> None:
            properties = wire.as_new(delivered.header.properties)
            if not await self._publisher.send("", self._topology.queue, delivered.body, properties):
                raise ConfigurationError(
                    f"there is no queue {self._topology.queue} to put it back into; start the service once, or run "
                    "topology apply"
                )

        return await self._remove(ids, progress, back)

    async def discard(self, ids: Collection[str] = (), progress: Callable[[int], None] = lambda count: None) -> int:
        """Deletes these, or all of them."""

        async def drop(delivered: DeliveredMessage) -> None:
            return None

        return await self._remove(ids, progress, drop)

    async def _remove(self, ids: Collection[str], progress: Callable[[int], None], first: Any) -> int:
        done = 0
        async for delivered in self._each():
            if ids and _id(delivered) not in ids:
                continue
            await first(delivered)
            await delivered.channel.basic_ack(delivered.delivery_tag or 0)
            done += 1
            progress(done)
        return done

    async def _each(self) -> AsyncIterator[DeliveredMessage]:
        """Those that lie there now, the oldest first. What is not acknowledged goes back when the channel closes."""
        total = await self.count()
        async with self._reading() as channel:
            for _ in range(total):
                delivered = await channel.basic_get(self._topology.dead_letters)
                if isinstance(delivered.delivery, spec.Basic.GetEmpty):
                    return
                yield delivered

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[Channel]:
        channel = await self._link.channel()
        try:
            yield channel
        except LOST as error:
            raise TransportUnavailableError(f"the broker went away: {describe(error)}") from error
        finally:
            await channel.close()

    def _absent(self) -> ConfigurationError:
        return ConfigurationError(
            f"there is no queue {self._topology.dead_letters} on the broker; the service makes it when it starts, or "
            "run topology apply"
        )


def _id(delivered: DeliveredMessage) -> str:
    return delivered.header.properties.message_id or ""


def _entry(delivered: DeliveredMessage, *, with_payload: bool) -> DeadLetter:
    properties = delivered.header.properties
    headers = properties.headers or {}
    journey = wire.journey_of(headers, now=datetime.max)
    return DeadLetter(
        message_id=properties.message_id,
        event_type=properties.message_type or delivered.routing_key or "",
        reason=str(headers.get(wire.REASON) or _reason_of_broker(headers)),
        exception=_text(headers.get(wire.EXCEPTION)),
        attempts=journey.attempts,
        redeliveries=journey.redeliveries,
        first_seen=journey.first_seen if wire.FIRST_SEEN in headers else None,
        size=len(delivered.body),
        headers={name: value for name, value in headers.items() if not name.startswith((wire.OURS, "x-"))},
        payload=delivered.body.decode(errors="backslashreplace") if with_payload else None,
        stack=_text(headers.get(wire.STACK)) if with_payload else None,
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _reason_of_broker(headers: dict[str, Any]) -> str:
    given = str(headers.get("x-first-death-reason", "unknown"))
    return f"the broker gave it up: {BY_THE_BROKER.get(given, given)}"
