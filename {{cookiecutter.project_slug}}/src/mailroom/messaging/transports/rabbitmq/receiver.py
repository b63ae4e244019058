"""Takes messages from the service's queue, and settles each of them (contract I1-I9, R6, F12, F14)."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from aiormq.abc import DeliveredMessage

from mailroom.backoff import backoff_seconds
from mailroom.errors import TransportUnavailableError
from mailroom.log import get_logger
from mailroom.messaging.attempts import Attempts, DeadLetter, Failure, Handled, Redeliver, Verdict
from mailroom.messaging.receiving import SUSPICIOUS, Receiving, report, wait_for_any
from mailroom.messaging.transports.rabbitmq import wire
from mailroom.messaging.transports.rabbitmq.link import LOST, Link, describe
from mailroom.messaging.transports.rabbitmq.publisher import Publisher
from mailroom.messaging.transports.rabbitmq.subscription import Subscription
from mailroom.messaging.transports.rabbitmq.topology import Topology
from mailroom.settings import Settings

logger = get_logger(__name__)


class Receiver(Receiving):
    """Consumes as long as it runs, over any number of connections.

    After each connect it takes one message at a time until one comes that is not suspicious, so that a message which
    kills its process is not in the company of others each time.
    """

    def __init__(
        self, settings: Settings, topology: Topology, link: Link, publisher: Publisher, attempts: Attempts
    ) -> None:
        super().__init__(settings)
        self._topology = topology
        self._link = link
        self._publisher = publisher
        self._attempts = attempts

    @property
    def _wants_something(self) -> bool:
        return bool(self._topology.bindings)

    async def _disconnect(self) -> None:
        await self._link.close()

    async def _consume(self) -> None:
        try:
            await self._consume_over_one_channel()
        except LOST as error:
            raise TransportUnavailableError(describe(error)) from error

    async def _consume_over_one_channel(self) -> None:
        if self._settings.rabbitmq.declare_topology:
            await self._topology.declare(self._link)
        channel = await self._link.channel()
        subscription = Subscription(channel, self._topology.queue, self._take)
        try:
            await subscription.begin(prefetch=1)
            self._is_consuming(
                queue=self._topology.queue,
                events=", ".join(self._topology.bindings),
                broker=self._settings.rabbitmq.safe_url,
            )
            await self._watch(subscription)
        finally:
            await self._end(subscription)
        if subscription.loss is not None:
            raise TransportUnavailableError(subscription.loss)

    async def _watch(self, subscription: Subscription) -> None:
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not self._stopping.is_set() and subscription.loss is None:
                changed = asyncio.create_task(subscription.changed.wait())
                await asyncio.wait([stopping, changed], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                subscription.changed.clear()
                if subscription.is_trusted and not subscription.is_wide and subscription.loss is None:
                    await subscription.widen(self._settings.message_bus.prefetch)
        finally:
            stopping.cancel()

    async def _end(self, subscription: Subscription) -> None:
        """Closing the channel returns what was not answered. What is handled beyond a loss goes on, for the inbox."""
        await subscription.cancel()
        if subscription.loss is None:
            await self._finish()
        await subscription.close()

    def _take(self, subscription: Subscription, delivered: DeliveredMessage) -> None:
        self._handle(self._settle(subscription, delivered))

    async def _settle(self, subscription: Subscription, delivered: DeliveredMessage) -> None:
        properties = delivered.header.properties
        returned = _count(properties.headers)
        if returned < SUSPICIOUS:
            subscription.trust()
        bus = self._settings.message_bus
        received = wire.received(properties, delivered.routing_key or "", delivered.body)
        journey = received.journey(now=datetime.now(UTC))
        try:
            message = received.message(limit=bus.max_payload_bytes, derive_id=bus.foreign_messages == "derive-id")
            verdict: Verdict = await self._attempts.run(
                message,
                journey,
                alone=returned >= SUSPICIOUS,
                is_ours=lambda: self._is_ours(subscription),
                pause=lambda seconds: self._wait(subscription, seconds),
            )
        except asyncio.CancelledError:
            return  # closing the channel returns the message
        except Exception as error:  # what cannot be read, whatever that fails with
            verdict = DeadLetter(journey, Failure.of(error))
        try:
            await self._answer(subscription, delivered, verdict)
        except Exception:
            logger.exception("a message could not be settled; the broker delivers it again")
            subscription.lose("a message could not be settled")

    async def _answer(self, subscription: Subscription, delivered: DeliveredMessage, verdict: Verdict) -> None:
        tag = delivered.delivery_tag
        if isinstance(verdict, Handled):
            await subscription.acknowledge(tag)
        elif isinstance(verdict, Redeliver):
            queue = self._topology.redelivery[verdict.after_seconds]
            if await self._put_aside(subscription, delivered, queue, verdict):
                _report(delivered, verdict)
        elif isinstance(verdict, DeadLetter) and await self._put_aside(
            subscription, delivered, self._topology.dead_letters, verdict
        ):
            _report(delivered, verdict)

    async def _put_aside(
        self, subscription: Subscription, delivered: DeliveredMessage, queue: str, verdict: Redeliver | DeadLetter
    ) -> bool:
        """A copy is confirmed in the other queue before this one is acknowledged: it can double, and not be lost."""
        properties, routing_key = delivered.header.properties, delivered.routing_key or ""
        aside = wire.put_aside(properties, routing_key, delivered.body, verdict.journey, verdict.failure)
        failures = 0
        while True:
            try:
                if not await self._publisher.send("", queue, delivered.body, aside):
                    raise TransportUnavailableError(f"there is no queue {queue}")
                await subscription.acknowledge(delivered.delivery_tag)
                return True
            except Exception as error:
                failures += 1
                if failures == 1:
                    logger.warning("a message could not be put aside, trying again", queue=queue, reason=str(error))
                if not await self._wait(subscription, backoff_seconds(failures, base=0.5, cap=30)):
                    return False

    async def _wait(self, subscription: Subscription, seconds: float) -> bool:
        """Whether the message is still ours after so many seconds."""
        return not await wait_for_any(self._stopping, subscription.lost, within=seconds) and self._is_ours(subscription)

    def _is_ours(self, subscription: Subscription) -> bool:
        return not self._stopping.is_set() and subscription.loss is None


def _count(headers: Any) -> int:
    count = (headers or {}).get(wire.DELIVERY_COUNT, 0)
    return count if isinstance(count, int) else 0


def _report(delivered: DeliveredMessage, verdict: Redeliver | DeadLetter) -> None:
    properties = delivered.header.properties
    report(verdict, message_id=properties.message_id, event_type=properties.message_type or delivered.routing_key)
