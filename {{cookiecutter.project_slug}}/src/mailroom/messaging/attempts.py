"""What becomes of a message from a broker: retries in memory, then redelivery, then the dead letters (contract I7, I8).

    delivered ─► attempt ─► handled                                     acknowledged
                  ▲   │
       in memory  └───┴─► failed ─► redelivered after the next interval ─► … ─► dead-lettered

How a message is put aside, and where, is the transport's own.
"""

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from mailroom.backoff import backoff_seconds
from mailroom.envelope import Message
from mailroom.errors import Reject, UndecodableError, UnknownEventError
from mailroom.log import get_logger
from mailroom.messaging.consumer import Consumer
from mailroom.service import is_being_cancelled
from mailroom.settings import MessageBusSettings

logger = get_logger(__name__)

STACK_LENGTH = 4_000
"""How many characters of a stack go with a dead letter: its end, where the error is."""
REASON_LENGTH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """What a message has been through on its broker; travels with it when it is put aside."""

    first_seen: datetime
    """When this service first took it."""
    attempts: int = 0
    """How many times handling it has failed."""
    redeliveries: int = 0
    """How many times it was put aside for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a message was put aside, in words that fit into its headers."""

    reason: str
    exception: str
    stack: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """The reason names the type; of a long stack the end is kept."""
        stack = "".join(traceback.format_exception(error))
        return cls(
            reason=_plain(f"{type(error).__name__}: {_text(error)}")[:REASON_LENGTH],
            exception=f"{type(error).__module__}.{type(error).__qualname__}",
            stack=_plain(stack)[-STACK_LENGTH:],
        )


@dataclass(frozen=True, slots=True)
class Handled:
    """The work is committed, was done before, or there was none."""


@dataclass(frozen=True, slots=True)
class Redeliver:
    """It failed, and comes again after so many seconds."""

    after_seconds: float
    journey: Journey
    failure: Failure


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """It is given up."""

    journey: Journey
    failure: Failure


@dataclass(frozen=True, slots=True)
class GivenBack:
    """It was not tried to the end: this process stops, or no longer holds it. No attempt is charged (I8)."""


Verdict = Handled | Redeliver | DeadLetter | GivenBack


class Attempts:
    """Hands a message to the consumer until there is a verdict."""

    def __init__(self, consumer: Consumer, bus: MessageBusSettings) -> None:
        self._consumer = consumer
        self._bus = bus
        self._waiting = 0

    async def run(
        self,
        message: Message,
        journey: Journey,
        *,
        alone: bool,
        is_ours: Callable[[], bool],
        pause: Callable[[float], Awaitable[bool]],
    ) -> Verdict:
        """Tries at once, then again after growing pauses.

        `alone`: no other message is handled meanwhile in this process, since this one may have killed another.
        `is_ours` says, before each try, whether the message need not be given back; `pause` waits for so many seconds,
        and says the same.
        """
        for retry in range(self._bus.retry_limit + 1):
            async with self._turn(alone):
                if not is_ours():
                    return GivenBack()
                error = await self._attempt(message, journey)
            if error is None:
                return Handled()
            journey = replace(journey, attempts=journey.attempts + 1)
            failure = Failure.of(error)
            _report(message, journey, failure)
            if isinstance(error, (Reject, UndecodableError)):
                return DeadLetter(journey, failure)
            if isinstance(error, UnknownEventError) or retry == self._bus.retry_limit or self._is_crowded:
                return self._put_aside(journey, failure)
            if not await self._wait(retry + 1, pause):
                return GivenBack()
        raise AssertionError("the last try has a verdict")

    @property
    def _is_crowded(self) -> bool:
        """Messages that wait take places in the window of the broker; half of it stays for others (F14)."""
        return self._waiting >= self._bus.prefetch // 2

    @asynccontextmanager
    async def _turn(self, alone: bool) -> AsyncIterator[None]:
        """A place among those that are handled at once, or the only one.

        First through the gate, then to a slot, as the rows of a relay: those inside need the slots to get out.
        """
        gate = self._consumer.gate
        if alone:
            async with gate.alone():
                yield
            return
        await gate.enter()
        try:
            async with self._consumer.slots:
                yield
        finally:
            gate.leave()

    async def _attempt(self, message: Message, journey: Journey) -> BaseException | None:
        try:
            await self._consumer.consume(message, journey.attempts + 1)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            return error
        except Exception as error:
            return error
        return None

    def _put_aside(self, journey: Journey, failure: Failure) -> Verdict:
        intervals = self._bus.redelivery_intervals_seconds
        if journey.redeliveries >= len(intervals):
            return DeadLetter(journey, failure)
        after = intervals[journey.redeliveries]
        return Redeliver(after, replace(journey, redeliveries=journey.redeliveries + 1), failure)

    async def _wait(self, failures: int, pause: Callable[[float], Awaitable[bool]]) -> bool:
        bus = self._bus
        self._waiting += 1
        try:
            return await pause(
                backoff_seconds(failures, base=bus.retry_min_interval_seconds, cap=bus.retry_max_interval_seconds)
            )
        finally:
            self._waiting -= 1


def _report(message: Message, journey: Journey, failure: Failure) -> None:
    logger.warning(
        "message failed",
        message_id=str(message.message_id),
        event_type=message.event_type,
        attempt=journey.attempts,
        redeliveries=journey.redeliveries,
        reason=failure.reason,
    )


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as unreadable:
        return f"its message cannot be read ({type(unreadable).__name__})"


def _plain(text: str) -> str:
    """Without what no header holds."""
    return text.encode(errors="backslashreplace").decode().replace("\0", r"\x00")
