"""What operators do with messages that were given up: look, replay, discard (contract I7).

Looking takes messages without acknowledging them, and nobody else sees them meanwhile. So whoever looks takes no more
than is asked for, and gives it back at once. The broker's own counts lag behind that; what it hands out does not. The
oldest come first until somebody has looked: what the broker gets back, it hands out in another order.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from aiormq import Channel, spec
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import ChannelNotFoundEntity

from mailroom.errors import MailroomError
from mailroom.messaging.headers import EXCEPTION, FIRST_SEEN, OURS, REASON, STACK
from mailroom.messaging.transports.base import DeadLetter, Progress, Removed, ignore
from mailroom.messaging.transports.rabbitmq import wire
from mailroom.messaging.transports.rabbitmq.answers import answered, asking
from mailroom.messaging.transports.rabbitmq.link import Link
from mailroom.messaging.transports.rabbitmq.publisher import Publisher
from mailroom.messaging.transports.rabbitmq.topology import Topology

BATCH_SIZE = 100
"""So many are in flight at once when they are replayed."""

BY_THE_BROKER = {
    "delivery_limit": "delivered too often without an answer: its handler may kill the process",
    "expired": "expired",
    "maxlen": "the queue was full",
    "rejected": "rejected",
}
"""What the broker calls its own reasons."""

Elsewhere = Callable[["_Taken"], Awaitable[None]]
"""Returns once the message is safe elsewhere, or need not be."""


class RabbitMQDeadLetters:
    """The dead-letter queue of one service."""

    def __init__(self, topology: Topology, link: Link, publisher: Publisher) -> None:
        self._topology = topology
        self._link = link
        self._publisher = publisher

    @property
    def place(self) -> str:
        return self._topology.dead_letters

    async def count(self) -> int:
        """Those that nobody looks at right now. Raises MailroomError if there is no such queue."""
        async with asking(self._link, f"the queue {self.place}") as channel:
            return await self._count(channel)

    async def entries(
        self, *, ids: Collection[str] = (), limit: int | None = None, with_payload: bool = False
    ) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        async with self._taking(ids, limit) as batches:
            async for batch in batches:
                found += [taken.entry(with_payload=with_payload) for taken in batch]
        return found

    async def replay(
        self, ids: Collection[str] = (), *, limit: int | None = None, progress: Progress = ignore
    ) -> Removed:
        """Into the service's queue, where the broker has confirmed each before it leaves the dead letters."""
        return await self._remove(ids, limit, progress, self._put_back)

    async def discard(
        self, ids: Collection[str] = (), *, limit: int | None = None, progress: Progress = ignore
    ) -> Removed:
        return await self._remove(ids, limit, progress, _drop)

    async def _remove(
        self, ids: Collection[str], limit: int | None, progress: Progress, elsewhere: Elsewhere
    ) -> Removed:
        done, missing = 0, set(ids)
        async with self._taking(ids, limit) as batches:
            async for batch in batches:
                await self._move(batch, elsewhere)
                missing -= {taken.message_id for taken in batch}
                done += len(batch)
                progress(done)
        return Removed(messages=done, missing=tuple(sorted(missing)))

    async def _move(self, batch: list["_Taken"], elsewhere: Elsewhere) -> None:
        """Where one of them fails, those that did not are settled all the same."""
        outcomes = await asyncio.gather(*(elsewhere(taken) for taken in batch), return_exceptions=True)
        async with answered(f"the queue {self.place}"):
            for taken, outcome in zip(batch, outcomes, strict=True):
                if outcome is None:
                    await taken.delivered.channel.basic_ack(taken.delivered.delivery_tag or 0)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _put_back(self, taken: "_Taken") -> None:
        properties = wire.as_new(taken.properties, taken.message_id, taken.event_type)
        if not await self._publisher.send("", self._topology.queue, taken.delivered.body, properties):
            raise MailroomError(
                f"there is no queue {self._topology.queue} to put it back into",
                remedy="start the service once, or run topology apply",
            )

    @asynccontextmanager
    async def _taking(self, ids: Collection[str], limit: int | None) -> AsyncIterator[AsyncIterator[list["_Taken"]]]:
        """Those that are there, in batches. What was not acknowledged in the block is back after it."""
        async with asking(self._link, f"the queue {self.place}") as channel:
            await self._count(channel)
            async with aclosing(self._batches(channel, frozenset(ids), limit)) as batches:
                yield batches
            async with answered(f"the queue {self.place}"):
                await channel.basic_nack(0, multiple=True)

    async def _batches(
        self, channel: Channel, ids: frozenset[str], limit: int | None
    ) -> AsyncGenerator[list["_Taken"], None]:
        """One that was replayed and has failed again meanwhile is left where it is; so is a copy in a later batch.

        Several may have one id, since to double is allowed. So a search for ids goes through all.
        """
        handed_out: set[str] = set()
        left = sys.maxsize if limit is None else limit
        while left > 0:
            size = BATCH_SIZE if ids else min(BATCH_SIZE, left)
            taken = await self._take(channel, size)
            asked_for = [one for one in taken if not ids or one.message_id in ids]
            batch = [one for one in asked_for if one.message_id not in handed_out][:left]
            handed_out |= {one.message_id for one in batch}
            left -= len(batch)
            yield batch
            if len(taken) < size:
                return

    async def _take(self, channel: Channel, size: int) -> list["_Taken"]:
        """Fewer only if there are no more."""
        taken: list[_Taken] = []
        async with answered(f"the queue {self.place}"):
            while len(taken) < size:
                delivered = await channel.basic_get(self.place)
                if isinstance(delivered.delivery, spec.Basic.GetEmpty):
                    break
                taken.append(_Taken(delivered))
        return taken

    async def _count(self, channel: Channel) -> int:
        async with answered(f"the queue {self.place}"):
            try:
                answer = await channel.queue_declare(self.place, passive=True)
            except ChannelNotFoundEntity:
                answer = None
        if answer is None:
            raise MailroomError(
                f"there is no queue {self.place} on the broker",
                remedy="the service makes it when it starts; or run topology apply",
            )
        return answer.message_count or 0


@dataclass(frozen=True, slots=True)
class _Taken:
    """A message that was taken from the dead letters and not acknowledged yet."""

    delivered: DeliveredMessage

    @property
    def properties(self) -> spec.Basic.Properties:
        return self.delivered.header.properties

    @property
    def headers(self) -> dict[str, Any]:
        return self.properties.headers or {}

    @property
    def event_type(self) -> str:
        """The broker puts the queue's own name in the routing key's place, and keeps the first one in a header."""
        return self.properties.message_type or wire.first_routing_key(self.headers) or self.delivered.routing_key or ""

    @property
    def message_id(self) -> str:
        return wire.received(self.properties, self.event_type, self.delivered.body).id

    def entry(self, *, with_payload: bool) -> DeadLetter:
        headers = self.headers
        received = wire.received(self.properties, self.event_type, self.delivered.body)
        journey = received.journey(now=datetime.max)
        return DeadLetter(
            message_id=received.id,
            event_type=self.event_type,
            reason=str(headers.get(REASON) or _reason_of_broker(headers)),
            exception=_text(headers.get(EXCEPTION)),
            attempts=journey.attempts,
            redeliveries=journey.redeliveries,
            first_seen=journey.first_seen if FIRST_SEEN in headers else None,
            size=len(self.delivered.body),
            headers={name: value for name, value in headers.items() if not name.startswith((OURS, "x-"))},
            payload=self.delivered.body.decode(errors="backslashreplace") if with_payload else None,
            stack=_text(headers.get(STACK)) if with_payload else None,
        )


async def _drop(taken: _Taken) -> None:
    """Nothing has to be safe."""


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _reason_of_broker(headers: dict[str, Any]) -> str:
    given = str(headers.get("x-first-death-reason", "unknown"))
    return f"the broker gave it up: {BY_THE_BROKER.get(given, given)}"
