"""Takes messages from the service's queue, and settles each of them (contract I1-I9, R6, F12, F14)."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from aiormq import Channel
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import ChannelNotFoundEntity

from mailroom.backoff import backoff_seconds
from mailroom.errors import ConfigurationError, TransportUnavailableError, UndecodableError
from mailroom.log import get_logger
from mailroom.messaging.attempts import Attempts, DeadLetter, Failure, Handled, Redeliver, Verdict
from mailroom.messaging.transports.rabbitmq import wire
from mailroom.messaging.transports.rabbitmq.link import LOST, Link, LoginRefusedError, describe
from mailroom.messaging.transports.rabbitmq.publisher import Publisher
from mailroom.messaging.transports.rabbitmq.topology import Topology
from mailroom.service import ended, is_being_cancelled
from mailroom.settings import Settings

logger = get_logger(__name__)

SUSPICIOUS = 3
"""A message that came back so often without an answer may have killed whoever handled it: it is handled alone."""
SETTLE_SECONDS = 10.0
"""How long an acknowledgement may take on a connection that may be dying."""


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
        await self._link.close()

    def failure(self) -> str | None:
        return ended([self._task])

    def disconnection(self) -> str | None:
        return self._problem if self._task is not None else None

    async def _run(self, started: "asyncio.Future[None]") -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                await self._consume(started)
                failures = 0
            except (ConfigurationError, LoginRefusedError) as error:
                if not started.done():
                    started.set_exception(error)
                    return
                self._tell(str(error), failures)
                failures += 1
            except (TransportUnavailableError, *LOST) as error:
                self._tell(str(error) if isinstance(error, TransportUnavailableError) else describe(error), failures)
                failures += 1
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                self._tell("the connection broke", failures)  # the client cancels whoever waits on it
                failures += 1
            except Exception:
                logger.exception("broker consumer failed, trying again")
                failures += 1
            if not started.done():
                started.set_result(None)
            if failures and not self._stopping.is_set():
                await self._pause(failures)

    def _tell(self, reason: str, failures: int) -> None:
        self._problem = reason
        if not failures:
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
        subscription = _Subscription(channel, self._topology.queue, self._take)
        try:
            await subscription.begin(prefetch=1)
            self._problem = None
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

    async def _watch(self, subscription: "_Subscription") -> None:
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

    async def _end(self, subscription: "_Subscription") -> None:
        """Closing the channel returns what was not answered."""
        await subscription.cancel()
        tasks = set(self._handling)
        if tasks and subscription.loss is None:
            await asyncio.wait(tasks, timeout=self._settings.shutdown_timeout_seconds)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await subscription.close()

    def _take(self, subscription: "_Subscription", delivered: DeliveredMessage) -> None:
        task = asyncio.create_task(self._settle(subscription, delivered), name="broker message")
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _settle(self, subscription: "_Subscription", delivered: DeliveredMessage) -> None:
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
                message, journey, alone=returned >= SUSPICIOUS, pause=lambda seconds: self._wait(subscription, seconds)
            )
        except UndecodableError as error:
            verdict = DeadLetter(journey, Failure.of(error))
        except asyncio.CancelledError:
            if is_being_cancelled():
                return  # closing the channel returns the message
            raise
        try:
            await self._answer(subscription, delivered, verdict)
        except Exception:
            logger.exception("a message could not be settled; the broker delivers it again")
            subscription.lose("a message could not be settled")

    async def _answer(self, subscription: "_Subscription", delivered: DeliveredMessage, verdict: Verdict) -> None:
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
        self, subscription: "_Subscription", delivered: DeliveredMessage, queue: str, verdict: Redeliver | DeadLetter
    ) -> bool:
        """A copy is confirmed in the other queue before this one is acknowledged: it can double, and not be lost."""
        aside = wire.put_aside(
            delivered.header.properties, delivered.routing_key or "", verdict.journey, verdict.failure
        )
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

    async def _wait(self, subscription: "_Subscription", seconds: float) -> bool:
        """Whether the message is still ours after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._given_up(subscription)
        except TimeoutError:
            return not self._stopping.is_set() and subscription.loss is None
        return False

    async def _given_up(self, subscription: "_Subscription") -> None:
        waits = [asyncio.create_task(self._stopping.wait()), asyncio.create_task(subscription.lost.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()


class _Subscription:
    """One consumer on one channel, from its begin to its loss."""

    def __init__(self, channel: Channel, queue: str, take: Callable[["_Subscription", DeliveredMessage], None]) -> None:
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
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._channel.basic_ack(tag or 0, wait=False)
        except (*LOST, TimeoutError) as error:
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
