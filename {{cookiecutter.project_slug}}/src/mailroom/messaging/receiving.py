"""What every receiver of a broker does alike: it runs from a start to a stop over any number of connections, and
finishes what is in hand (contract R6, F12)."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any

from mailroom.backoff import backoff_seconds
from mailroom.errors import ConfigurationError, LoginRefusedError, TransportUnavailableError
from mailroom.log import get_logger
from mailroom.messaging.attempts import DeadLetter, Redeliver
from mailroom.service import UNDOING_SECONDS, end, ended, is_being_cancelled
from mailroom.settings import Settings

logger = get_logger(__name__)

SUSPICIOUS = 3
"""A message that came back so often without an answer may have killed whoever handled it: it is handled alone."""


class Receiving(ABC):
    """A service that consumes as long as it runs; a transport says what consuming over one connection is."""

    name = "BrokerConsumer"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = asyncio.Event()
        self._handling: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None
        self._problem: str | None = None
        self._failures = 0
        """How many connections in a row consumed nothing."""

    @property
    @abstractmethod
    def _wants_something(self) -> bool:
        """Whether any handler takes an integration event."""

    @abstractmethod
    async def _consume(self) -> None:
        """Consumes over one connection until it is lost, or until the stop; says `_is_consuming` once it does.

        Raises TransportUnavailableError with why it was lost.
        """

    @abstractmethod
    async def _disconnect(self) -> None:
        """Closes what is left, once nothing is in hand any more."""

    async def start(self) -> None:
        """Consumes from now on; where the broker is away, as soon as it is back.

        Raises ConfigurationError if what is on the broker cannot be used, LoginRefusedError if it does not let this
        user in.
        """
        if not self._wants_something:
            logger.info("nothing to consume", reason="this service handles no integration event")
            return
        self._stopping.clear()
        self._started = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(self._started), name="broker consumer")
        try:
            await asyncio.shield(self._started)
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
        await self._disconnect()

    def failure(self) -> str | None:
        return ended([self._task])

    def disconnection(self) -> str | None:
        return self._problem if self._task is not None else None

    def _is_consuming(self, **facts: Any) -> None:
        self._problem, self._failures = None, 0
        logger.info("consuming", **facts)
        self._has_started()

    def _handle(self, work: Coroutine[Any, Any, None]) -> None:
        """Beside whatever else is in hand."""
        task = asyncio.create_task(work, name="broker message")
        self._handling.add(task)
        task.add_done_callback(self._handling.discard)

    async def _finish(self) -> None:
        """Waits for what is being handled, within the bound; what takes longer is undone, and comes again."""
        tasks = set(self._handling)
        if tasks:
            await asyncio.wait(tasks, timeout=self._settings.shutdown_timeout_seconds)
            await end(tasks, again_seconds=UNDOING_SECONDS)

    async def _run(self, started: "asyncio.Future[None]") -> None:
        self._failures = 0
        while not self._stopping.is_set():
            try:
                await self._consume()
            except (ConfigurationError, LoginRefusedError) as error:
                if not started.done():
                    started.set_exception(error)
                    return
                self._tell(str(error))
            except TransportUnavailableError as error:
                self._tell(str(error))
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                self._tell("the connection broke")  # a client cancels whoever waits on it
            except Exception:
                logger.exception("broker consumer failed, trying again")
                self._failures += 1
            self._has_started()
            if not self._stopping.is_set():
                await self._pause(self._failures)

    def _has_started(self) -> None:
        if self._started is not None and not self._started.done():
            self._started.set_result(None)

    def _tell(self, reason: str) -> None:
        self._problem = reason
        self._failures += 1
        if self._failures == 1:
            logger.warning("broker unavailable", reason=reason, consequence="nothing is consumed until it is back")

    async def _pause(self, failures: int) -> None:
        bus = self._settings.message_bus
        seconds = backoff_seconds(failures, base=bus.retry_min_interval_seconds, cap=bus.retry_max_interval_seconds)
        await wait_for_any(self._stopping, within=seconds)


async def wait_for_any(*events: asyncio.Event, within: float) -> bool:
    """Whether one of them was set within so many seconds."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        done, _ = await asyncio.wait(waits, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        return bool(done)
    finally:
        for wait in waits:
            wait.cancel()


def report(verdict: Redeliver | DeadLetter, *, message_id: str | None, event_type: str | None) -> None:
    """Tells that a message was put aside, or given up."""
    facts: dict[str, Any] = {
        "message_id": message_id,
        "event_type": event_type,
        "attempts": verdict.journey.attempts,
        "redeliveries": verdict.journey.redeliveries,
    }
    if isinstance(verdict, Redeliver):
        logger.warning("message will be redelivered", in_seconds=verdict.after_seconds, **facts)
    else:
        logger.error("message dead-lettered", reason=verdict.failure.reason, **facts)
