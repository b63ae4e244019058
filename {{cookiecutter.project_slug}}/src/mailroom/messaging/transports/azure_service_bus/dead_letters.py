"""What operators do with messages that were given up: look, replay, discard (contract I7).

Looking locks nothing. To replay or discard means to take with a lock, put elsewhere, and complete. What was taken and
is not meant goes back, the oldest first again.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage

from mailroom.errors import MailroomError, TransportUnavailableError
from mailroom.messaging.headers import OURS
from mailroom.messaging.transports.azure_service_bus import wire
from mailroom.messaging.transports.azure_service_bus.intake import Intake
from mailroom.messaging.transports.azure_service_bus.namespace import Namespace
from mailroom.messaging.transports.azure_service_bus.publisher import Publisher
from mailroom.messaging.transports.azure_service_bus.refusals import EntityMissingError, LockLostError
from mailroom.messaging.transports.azure_service_bus.topology import Topology
from mailroom.messaging.transports.base import DeadLetter, Progress, Removed, ignore

BATCH_SIZE = 100
"""So many are in flight at once when they are replayed, or looked at."""
TAKE_SECONDS = 2.0
"""If none came for so long, there are no more, or somebody else has them."""

Elsewhere = Callable[[ServiceBusReceivedMessage], Awaitable[None]]
"""Returns once the message is safe elsewhere, or need not be."""


class ServiceBusDeadLetters:
    """The dead-letter sub-queue of one service's queue."""

    def __init__(self, topology: Topology, namespace: Namespace, to_queue: Publisher) -> None:
        self._topology = topology
        self._namespace = namespace
        self._to_queue = to_queue

    @property
    def place(self) -> str:
        return self._topology.dead_letters

    async def count(self) -> int:
        """Those that somebody has taken meanwhile, too."""
        async with self._intake() as intake:
            return sum([1 async for _ in _all(intake)])

    async def entries(
        self, *, ids: Collection[str] = (), limit: int | None = None, with_payload: bool = False
    ) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        async with self._intake() as intake, aclosing(_all(intake)) as messages:
            async for message in messages:
                if limit is not None and len(found) >= limit:
                    break
                if not ids or _id_of(message) in ids:
                    found.append(_entry(message, with_payload=with_payload))
        return found

    async def replay(
        self, ids: Collection[str] = (), *, limit: int | None = None, progress: Progress = ignore
    ) -> Removed:
        """Into the service's queue, where each is stored before it leaves the dead letters."""
        return await self._remove(ids, limit, progress, self._put_back)

    async def discard(
        self, ids: Collection[str] = (), *, limit: int | None = None, progress: Progress = ignore
    ) -> Removed:
        return await self._remove(ids, limit, progress, _drop)

    async def _put_back(self, message: ServiceBusReceivedMessage) -> None:
        await self._to_queue.send(wire.as_new(message))

    async def _remove(
        self, ids: Collection[str], limit: int | None, progress: Progress, elsewhere: Elsewhere
    ) -> Removed:
        done, missing = 0, set(ids)
        async with self._intake() as intake, aclosing(_batches(intake, frozenset(ids), limit)) as batches:
            async for batch in batches:
                await _move(intake, batch, elsewhere)
                missing -= {_id_of(message) for message in batch}
                done += len(batch)
                progress(done)
        return Removed(messages=done, missing=tuple(sorted(missing)))

    @asynccontextmanager
    async def _intake(self) -> AsyncIterator[Intake]:
        intake = Intake(self._namespace, self._topology.queue, of_dead_letters=True)
        try:
            await intake.open()
            yield intake
        except EntityMissingError as error:
            raise MailroomError(
                f"there is no queue {self._topology.queue} in the namespace",
                remedy="the service makes it when it starts; or run topology apply",
            ) from error
        finally:
            await intake.close()


async def _all(intake: Intake) -> AsyncGenerator[ServiceBusReceivedMessage, None]:
    last = 0
    while messages := await intake.peek(BATCH_SIZE, after=last):
        for message in messages:
            yield message
        last = messages[-1].sequence_number or sys.maxsize


async def _batches(
    intake: Intake, ids: frozenset[str], limit: int | None
) -> AsyncGenerator[list[ServiceBusReceivedMessage], None]:
    """One that was replayed and has failed again meanwhile is left where it is; so is a copy in a later batch.

    Several may have one id, since to double is allowed. So a search for ids goes through all; it ends where only those
    come that came before, since their locks have run out.
    """
    handed_out: set[str] = set()
    seen: set[int | None] = set()
    to_return: list[ServiceBusReceivedMessage] = []
    left = sys.maxsize if limit is None else limit
    try:
        while left > 0:
            taken = await intake.take(BATCH_SIZE if ids else min(BATCH_SIZE, left), seconds=TAKE_SECONDS)
            fresh = [message for message in taken if message.sequence_number not in seen]
            if not fresh:
                to_return += taken
                return
            seen |= {message.sequence_number for message in fresh}
            meant = [one for one in fresh if (not ids or _id_of(one) in ids) and _id_of(one) not in handed_out][:left]
            to_return += [message for message in taken if message not in meant]
            handed_out |= {_id_of(message) for message in meant}
            left -= len(meant)
            yield meant
    finally:
        for message in to_return:
            await _give_back(intake, message)


async def _move(intake: Intake, batch: list[ServiceBusReceivedMessage], elsewhere: Elsewhere) -> None:
    """Where one of them fails, those that did not are settled all the same, and it goes back."""
    outcomes = await asyncio.gather(*(elsewhere(message) for message in batch), return_exceptions=True)
    for message, outcome in zip(batch, outcomes, strict=True):
        if outcome is None:
            await intake.complete(message)
        else:
            await _give_back(intake, message)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


async def _give_back(intake: Intake, message: ServiceBusReceivedMessage) -> None:
    with suppress(LockLostError, TransportUnavailableError):  # then it is back once its lock has run out
        await intake.abandon(message)


def _id_of(message: ServiceBusReceivedMessage) -> str:
    return wire.received(message).id


def _entry(message: ServiceBusReceivedMessage, *, with_payload: bool) -> DeadLetter:
    received, epitaph = wire.received(message), wire.epitaph(message)
    headers: dict[str, Any] = {
        name: value
        for name, value in received.headers.items()
        if not name.startswith((OURS, "x-")) and name not in wire.OF_THE_SERVICE
    }
    return DeadLetter(
        message_id=received.id,
        event_type=received.event_type,
        reason=epitaph.reason,
        exception=epitaph.exception,
        attempts=epitaph.attempts,
        redeliveries=epitaph.redeliveries,
        first_seen=epitaph.first_seen,
        size=len(received.body),
        headers=headers,
        payload=received.body.decode(errors="backslashreplace") if with_payload else None,
        stack=epitaph.stack if with_payload else None,
    )


async def _drop(message: ServiceBusReceivedMessage) -> None:
    """Nothing has to be safe."""
