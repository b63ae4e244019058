"""Takes messages from the service's queue, and settles each of them (contract I1-I9, R6, F12, F14)."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from aiormq.abc import DeliveredMessage

from mailroom.backoff import backoff_seconds
from mailroom.errors import ConfigurationError, TransportUnavailableError
from mailroom.log import get_logger
from mailroom.messaging.attempts import Attempts, DeadLetter, Failure, Handled, Redeliver, Verdict
from mailroom.messaging.transports.rabbitmq import wire
from mailroom.messaging.transports.rabbitmq.link import LOST, Link, LoginRefusedError, describe
from mailroom.messaging.transports.rabbitmq.publisher import Publisher
from mailroom.messaging.transports.rabbitmq.subscription import Subscription
from mailroom.messaging.transports.rabbitmq.topology import Topology
from mailroom.service import end, ended, is_being_cancelled
from mailroom.settings import Settings

logger = get_logger(__name__)

SUSPICIOUS = 3
"""A message that came back so often without an answer may have killed whoever handled it: it is handled alone."""


class Receiver:
    """Consumes as long as it runs, over any number of connections.

    After each connect it takes one message at a time until one comes that is not suspicious, so that a message which
    kills its process is not in the company of others each time.
    """

    name = "BrokerConsumer"

    def __init__(
        self, settings: Settings, topology: Topology, link: Link, publisher: Publisher, attempts: Attempts
    ) -> None:
        self._settings = settings
        self._topology = topology
        self._link = link
        self._publisher = publisher
        self._attempts = attempts
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._handling: set[asyncio.Task[None]] = set()
        self._problem: str | None = None
        self._failures = 0
        """How many connections in a row consumed nothing."""

    async def start(self) -> None:
        """Consumes from now on; where the broker is away, as soon as it is back.

        Raises ConfigurationError if what is on the broker cannot be used, TransportUnavailableError if it does not
        let this user in.
        """
        if not self._topology.bindings:
            logger.info("nothing to consume", reason="this service handles no integration event")
            return
        self._stopping.clear()
        started = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(started), name="broker consumer")
        try:
            await asyncio.shield(started)
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Takes nothing more, finishes what is being handled within `shutdown_timeout_seconds`, returns the rest."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.exception()
            self._task = None
        await self._finish()
        await self._link.close()

    def failure(self) -> str | None:
        return ended([self._task])

    def disconnection(self) -> str | None:
        return self._problem if self._task is not None else None

    async def _run(self, started: "asyncio.Future[None]") -> None:
        self._failures = 0
        while not self._stopping.is_set():
            try:
                await self._consume(started)
            except (ConfigurationError, LoginRefusedError) as error:
                if not started.done():
                    started.set_exception(error)
                    return
                self._tell(str(error))
            except TransportUnavailableError as error:
                self._tell(str(error))
            except LOST as error:
                self._tell(describe(error))
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                self._tell("the connection broke")  # the client cancels whoever waits on it
            except Exception:
                logger.exception("broker consumer failed, trying again")
                self._failures += 1
            if not started.done():
                started.set_result(None)
            if not self._stopping.is_set():
                await self._pause(self._failures)

    def _tell(self, reason: str) -> None:
        self._problem = reason
        self._failures += 1
        if self._failures == 1:
            logger.warning("broker unavailable", reason=reason, consequence="nothing is consumed until it is back")

    async def _pause(self, failures: int) -> None:
        bus = self._settings.message_bus
        seconds = backoff_seconds(failures, base=bus.retry_min_interval_seconds, cap=bus.retry_max_interval_seconds)
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _consume(self, started: "asyncio.Future[None]") -> None:
        """Consumes over one channel until it is lost, or until the stop. Returns or raises why it was lost."""
        if self._settings.rabbitmq.declare_topology:
            await self._topology.declare(self._link)
        channel = await self._link.channel()
        subscription = Subscription(channel, self._topology.queue, self._take)
        try:
            await subscription.begin(prefetch=1)
            self._problem, self._failures = None, 0
            logger.info(
                "consuming",
                queue=self._topology.queue,
                events=", ".join(self._topology.bindings),
                broker=self._settings.rabbitmq.safe_url,
            )
            if not started.done():
                started.set_result(None)
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

    async def _finish(self) -> None:
        """Waits for what is being handled, within the bound; what takes longer is undone, and comes again."""
        tasks = set(self._handling)
        if not tasks:
            return
        await asyncio.wait(tasks, timeout=self._settings.shutdown_timeout_seconds)
        await end(tasks)

    def _take(self, subscription: Subscription, delivered: DeliveredMessage) -> None:
        task = asyncio.create_task(self._settle(subscription, delivered), name="broker message")
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _settle(self, subscription: Subscription, delivered: DeliveredMessage) -> None:
        properties = delivered.header.properties
        routing_key = delivered.routing_key or ""
        returned = _count(properties.headers)
        if returned < SUSPICIOUS:
            subscription.trust()
        bus = self._settings.message_bus
        journey = wire.journey_of(properties.headers, now=datetime.now(UTC))
        try:
            message = wire.message_of(
                properties,
                routing_key,
                delivered.body,
                limit=bus.max_payload_bytes,
                derive_id=bus.foreign_messages == "derive-id",
            )
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
                _report("message will be redelivered", delivered, verdict, in_seconds=verdict.after_seconds)
        elif isinstance(verdict, DeadLetter) and await self._put_aside(
            subscription, delivered, self._topology.dead_letters, verdict
        ):
            _report("message dead-lettered", delivered, verdict, reason=verdict.failure.reason)

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
        try:
            async with asyncio.timeout(seconds):
                await self._given_up(subscription)
        except TimeoutError:
            return self._is_ours(subscription)
        return False

    def _is_ours(self, subscription: Subscription) -> bool:
        return not self._stopping.is_set() and subscription.loss is None

    async def _given_up(self, subscription: Subscription) -> None:
        waits = [asyncio.create_task(self._stopping.wait()), asyncio.create_task(subscription.lost.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


def _count(headers: Any) -> int:
    count = (headers or {}).get(wire.DELIVERY_COUNT, 0)
    return count if isinstance(count, int) else 0


def _report(what: str, delivered: DeliveredMessage, verdict: Redeliver | DeadLetter, **facts: Any) -> None:
    properties = delivered.header.properties
    log = logger.error if isinstance(verdict, DeadLetter) else logger.warning
    log(
        what,
        message_id=properties.message_id,
        event_type=properties.message_type or delivered.routing_key,
        attempts=verdict.journey.attempts,
        redeliveries=verdict.journey.redeliveries,
        **facts,
    )
