"""Takes messages from the service's queue, and settles each of them (contract I1-I9, R6, F12, F14).

A redelivery is a copy that the service hands out later. The copy is stored before the message is completed, so it can
double, and not be lost.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from mailroom.backoff import backoff_seconds
from mailroom.errors import PublishError, TransportUnavailableError
from mailroom.log import get_logger
from mailroom.messaging.attempts import Attempts, DeadLetter, Failure, Handled, Journey, Redeliver, Verdict
from mailroom.messaging.receiving import SUSPICIOUS, Receiving, report, wait_for_any
from mailroom.messaging.transports.azure_service_bus import wire
from mailroom.messaging.transports.azure_service_bus.holding import Held, Holding
from mailroom.messaging.transports.azure_service_bus.intake import BUSY_SECONDS, IDLE_SECONDS, Intake
from mailroom.messaging.transports.azure_service_bus.namespace import Namespace
from mailroom.messaging.transports.azure_service_bus.publisher import Publisher
from mailroom.messaging.transports.azure_service_bus.refusals import EntityMissingError, LockLostError
from mailroom.messaging.transports.azure_service_bus.topology import Preparation, Topology
from mailroom.service import end
from mailroom.settings import Settings

logger = get_logger(__name__)


class Receiver(Receiving):
    """Consumes as long as it runs, over any number of connections; a message in hand outlives the one it came over.

    After each loss it takes one message at a time until one comes that is not suspicious, so that a message which kills
    its process is not in the company of others each time.
    """

    def __init__(
        self,
        settings: Settings,
        topology: Topology,
        namespace: Namespace,
        preparation: Preparation,
        aside: Publisher,
        attempts: Attempts,
    ) -> None:
        """`preparation` makes the queue; `aside` publishes to it."""
        super().__init__(settings)
        self._topology = topology
        self._namespace = namespace
        self._aside = aside
        self._attempts = attempts
        self._preparation = preparation
        self._intake: Intake | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._is_trusted = False
        self._holding = Holding(
            lock_seconds=settings.service_bus.lock_seconds,
            limit_seconds=settings.service_bus.lock_renewal_limit_seconds,
        )

    @property
    def _wants_something(self) -> bool:
        return bool(self._topology.events)

    async def _disconnect(self) -> None:
        if self._renewal is not None:
            await end([self._renewal])
            self._renewal = None
        await self._holding.give_back()
        intake, self._intake = self._intake, None
        if intake is not None:
            await intake.close()
        await self._aside.close()

    async def _consume(self) -> None:
        self._is_trusted = False
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._holding.keep(), name="broker locks")
        try:
            intake = await self._open()
            self._is_consuming(
                queue=self._topology.queue, events=", ".join(self._topology.events), namespace=self._namespace.host
            )
            while not self._stopping.is_set():
                await self._take(intake)
        except EntityMissingError:
            self._preparation.forget()
            raise

    async def _open(self) -> Intake:
        """The one that is in use, if it can be: it connects anew by itself, and settles what came before that."""
        if self._intake is None or self._intake.loss is not None:
            if self._intake is not None:
                await self._intake.close()
            self._intake = Intake(self._namespace, self._topology.queue)
        await self._preparation()
        await self._intake.open()
        return self._intake

    async def _take(self, intake: Intake) -> None:
        free = (self._settings.message_bus.prefetch if self._is_trusted else 1) - len(self._handling)
        if free <= 0:
            await asyncio.wait(set(self._handling), timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            return
        is_busy = bool(self._handling)
        # One alone is had at once; asked for more, the client waits for more.
        messages = await intake.take(free if is_busy else 1, seconds=BUSY_SECONDS if is_busy else IDLE_SECONDS)
        for message in messages:
            held = Held(message=message, intake=intake, since=datetime.now(UTC))
            self._holding.add(held)
            self._handle(self._settle(held))

    async def _settle(self, held: Held) -> None:
        """A message stays in hand if this is cancelled: then it is given back."""
        try:
            await self._answer(held, await self._verdict(held))
        except Exception:
            logger.exception("a message could not be settled; it comes again once its lock has run out")
        self._holding.remove(held)

    async def _verdict(self, held: Held) -> Verdict:
        returned = held.message.delivery_count or 0
        if returned < SUSPICIOUS:
            self._is_trusted = True
        journey = Journey(first_seen=datetime.now(UTC))
        try:
            received = wire.received(held.message)
            journey = received.journey(now=journey.first_seen)
            bus = self._settings.message_bus
            message = received.message(limit=bus.max_payload_bytes, derive_id=bus.foreign_messages == "derive-id")
            return await self._attempts.run(
                message,
                journey,
                alone=returned >= SUSPICIOUS,
                is_ours=lambda: self._is_ours(held),
                pause=lambda seconds: self._wait(held, seconds),
            )
        except Exception as error:  # what cannot be read, whatever that fails with
            return DeadLetter(journey, Failure.of(error))

    async def _answer(self, held: Held, verdict: Verdict) -> None:
        intake, message = held.intake, held.message
        if isinstance(verdict, Handled):
            await self._surely(held, lambda: intake.complete(message))
        elif isinstance(verdict, Redeliver):
            await self._put_aside(held, verdict)
        elif isinstance(verdict, DeadLetter):
            reason = verdict.failure.reason[: wire.REASON_LENGTH]
            description = wire.description(verdict.journey, verdict.failure)
            if await self._surely(held, lambda: intake.dead_letter(message, reason=reason, description=description)):
                report(verdict, message_id=message.message_id, event_type=message.subject)
        else:
            await held.give_back()

    async def _put_aside(self, held: Held, verdict: Redeliver) -> None:
        """A copy that the service does not take, with what it has been through, leaves the message to be given up."""
        due = datetime.now(UTC) + timedelta(seconds=verdict.after_seconds)
        copy = wire.again(held.message, verdict.journey, verdict.failure, due=due)
        try:
            is_safe = await self._surely(held, lambda: self._aside.send(copy))
        except PublishError as error:
            logger.warning("a message cannot be put aside", message_id=held.message.message_id, reason=str(error))
            await self._answer(held, DeadLetter(verdict.journey, verdict.failure))
            return
        if is_safe and await self._surely(held, lambda: held.intake.complete(held.message)):
            report(verdict, message_id=held.message.message_id, event_type=held.message.subject)

    async def _surely(self, held: Held, ask: Callable[[], Awaitable[None]]) -> bool:
        """Until the service has answered, or the lock is lost: then the message comes again."""
        failures = 0
        while True:
            try:
                await ask()
            except LockLostError as error:
                held.lose(str(error))
                return False
            except TransportUnavailableError as error:
                failures += 1
                if not held.is_ours:
                    held.lose(str(error))
                    return False
                if failures == 1:
                    logger.warning("a message could not be settled, trying again", reason=str(error))
                await wait_for_any(held.lost, within=backoff_seconds(failures, base=0.5, cap=10))
            else:
                return True

    async def _wait(self, held: Held, seconds: float) -> bool:
        """Whether the message is still ours after so many seconds."""
        return not await wait_for_any(self._stopping, held.lost, within=seconds) and self._is_ours(held)

    def _is_ours(self, held: Held) -> bool:
        return not self._stopping.is_set() and held.is_ours
