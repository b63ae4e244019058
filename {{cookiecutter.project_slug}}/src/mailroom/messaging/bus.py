"""The write point while the outbox is off: events go straight to the handlers, after the commit (ADR-100, O2)."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.util import await_only

from mailroom import serialization
from mailroom.envelope import Message
from mailroom.errors import CaptureError, CascadeError
from mailroom.log import get_logger
from mailroom.persistence.capture import Raised
from mailroom.service import UNDOING_SECONDS, end, is_being_cancelled

logger = get_logger(__name__)


@dataclass(slots=True)
class _Cascade:
    """One commit's events and all that their handlers raised in turn, in one flat queue."""

    queue: deque[Message]
    raised_by_handlers: int = 0
    is_open: bool = True
    failures: dict[UUID, BaseException] = field(default_factory=dict)


_cascade: ContextVar[_Cascade | None] = ContextVar("mailroom_cascade", default=None)


class DirectDispatcher:
    """The sink of a data source whose outbox is off: nothing is stored, and a failed handler is not retried."""

    def __init__(self, consume: Callable[[Message, int], Awaitable[object]], *, cascade_limit: int) -> None:
        self._consume = consume
        self._cascade_limit = cascade_limit
        self._running: set[asyncio.Task[None]] = set()

    def seal(self, connection: Connection, raised: Sequence[Raised]) -> Sequence[Message]:
        """Writes nothing; see `encode`."""
        return self.encode(raised)

    def encode(self, raised: Sequence[Raised]) -> Sequence[Message]:
        """Encodes, so that what works in a monolith works over a broker (contract O3).

        Raises CaptureError for a delayed event: nobody could keep it until then. Raises CascadeError where
        handlers raise events without end.
        """
        for one in raised:
            if one.is_delayed:
                raise CaptureError(
                    f"{type(one.event).event_name} carries a delay, which needs the outbox, and the outbox is off: "
                    "the commit failed and nothing was stored. Set message_bus.enable_outbox = true; "
                    "no migration is needed."
                )
        self._check_cascade(len(raised), type(raised[0].event).event_name)
        return [serialization.encode(one.event, headers=one.headers, ordering_key=one.ordering_key) for one in raised]

    def deliver(self, messages: Sequence[Message]) -> None:
        """Runs the handlers before the commit returns, each message in a transaction of its own.

        A failing handler is logged and never turns the commit into an error. If the waiting task is cancelled,
        the handlers go on nevertheless: the data is committed.
        """
        cascade = self._current()
        if cascade is not None:
            cascade.raised_by_handlers += len(messages)
            cascade.queue.extend(messages)
            return
        await_only(self._run_to_the_end(_Cascade(deque(messages))))

    async def dispatch(self, message: Message) -> None:
        """Runs the handlers of one message and of what they raise; raises what its own handlers raised."""
        cascade = _Cascade(deque([message]))
        await self._run_to_the_end(cascade)
        if message.message_id in cascade.failures:
            raise cascade.failures[message.message_id]

    async def stop(self, within_seconds: float) -> None:
        """Waits for what is being dispatched. What takes longer is undone; without an outbox, its events are lost."""
        try:
            async with asyncio.timeout(within_seconds):
                while self._running:
                    await asyncio.wait(self._running)
        except TimeoutError:
            await end(self._running, again_seconds=UNDOING_SECONDS)

    async def _run_to_the_end(self, cascade: _Cascade) -> None:
        task = asyncio.create_task(self._run(cascade), name="direct dispatch")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.shield(task)

    async def _run(self, cascade: _Cascade) -> None:
        _cascade.set(cascade)
        try:
            while cascade.queue:
                message = cascade.queue.popleft()
                try:
                    await self._consume(message, 1)
                except asyncio.CancelledError as error:
                    if is_being_cancelled():
                        raise
                    _note_failure(cascade, message, error)
                except Exception as error:
                    _note_failure(cascade, message, error)
        except asyncio.CancelledError:
            logger.error(
                "stopped before all events were handled; they are lost, because the outbox is off",
                event_types=", ".join([message.event_type, *(waiting.event_type for waiting in cascade.queue)]),
            )
            raise
        finally:
            cascade.is_open = False

    def _current(self) -> _Cascade | None:
        cascade = _cascade.get()
        return cascade if cascade is not None and cascade.is_open else None

    def _check_cascade(self, more: int, event_name: str) -> None:
        cascade = self._current()
        if cascade is not None and cascade.raised_by_handlers + more > self._cascade_limit:
            raise CascadeError(
                f"Handlers have raised {cascade.raised_by_handlers} events in turn, and {event_name} would exceed "
                f"message_bus.cascade_limit = {self._cascade_limit}. "
                "Do handlers raise events for each other without end?"
            )


def _note_failure(cascade: _Cascade, message: Message, error: BaseException) -> None:
    cascade.failures[message.message_id] = error
    logger.error(
        "handler failed; the event is not retried, because the outbox is off",
        exc_info=error,
        message_id=str(message.message_id),
        event_type=message.event_type,
    )
