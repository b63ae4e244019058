"""The one way in which a message reaches its handlers, whoever delivers it (ADR-021, contract I1-I9).

One message, one session, one commit: the inbox row, the changes of every handler and the events they raised.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import event as session_event
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, SessionTransaction

from mailroom import metrics, tracing
from mailroom.catalog import EventCatalog
from mailroom.envelope import Message
from mailroom.errors import HandlerTimeoutError, RolledBackError
from mailroom.events import Event, Kind
from mailroom.inbox.store import InboxStore
from mailroom.log import get_logger, logged_with
from mailroom.messaging.handlers import Context, Handler, Handlers
from mailroom.outbox.gate import Gate
from mailroom.persistence.aggregates import MailroomSession

logger = get_logger(__name__)

_WATCH = "mailroom.rollback_watch"


class Outcome(StrEnum):
    """What became of a message; each of these is acknowledged."""

    HANDLED = "handled"
    DUPLICATE = "duplicate"
    UNHANDLED = "unhandled"
    """Known to this service, but nothing handles it."""


class Consumer:
    """Hands messages to handlers, one attempt per call. Retrying is the caller's business."""

    def __init__(
        self,
        *,
        catalog: EventCatalog,
        handlers: Handlers,
        sessions: async_sessionmaker[AsyncSession],
        inbox: InboxStore,
        resources: Any,
        timeout_seconds: float,
        concurrency: int = 1,
    ) -> None:
        self.slots = asyncio.Semaphore(concurrency)
        """So many messages are handled at once; whoever hands one over takes a slot for each attempt."""
        self.gate = Gate()
        """Whoever hands messages over goes through it, so that one which may kill the process is alone (R6)."""
        self._catalog = catalog
        self._handlers = handlers
        self._sessions = sessions
        self.inbox = inbox
        self._resources = resources
        self._timeout_seconds = timeout_seconds

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """What a broker has to deliver: the names and aliases of the integration events that are handled here."""
        events = {handler.event: None for handler in self._handlers if handler.event.kind is Kind.INTEGRATION}
        return tuple(name for event in events for name in (event.event_name, *event.event_aliases))

    async def consume(self, message: Message, attempt: int) -> Outcome:
        """One attempt. Whatever it raises, nothing of the attempt was kept, unless a handler committed for itself.

        Raises UnknownEventError, UndecodableError, Reject, HandlerTimeoutError, or what a handler raised.
        """
        outcome: Outcome | None = None
        try:
            with tracing.handling(message), logged_with(message, attempt):
                outcome = await self._consume(message, attempt)
        finally:
            lag = (datetime.now(UTC) - message.occurred_on).total_seconds()
            metrics.consumed(message.event_type, outcome or "failed", lag)
        if outcome is not Outcome.HANDLED:
            logger.info(f"message {outcome}", message_id=str(message.message_id), event_type=message.event_type)
        return outcome

    async def _consume(self, message: Message, attempt: int) -> Outcome:
        event = self._catalog.decode(message)
        handlers = self._handlers.of(type(event))
        async with self._sessions() as session:
            session.sync_session.begin()  # asks no database yet
            try:
                if not await self.inbox.try_begin(session, message.message_id, message.event_type):
                    return Outcome.DUPLICATE
                await self._handle(event, handlers, self._context(session, message, attempt))
                await self.inbox.complete(session, message.message_id, message.event_type)
            except asyncio.CancelledError:
                await self._undo(session, message)
                raise
            except Exception:
                # Whatever went wrong: if the row is there now, a concurrent delivery did the work meanwhile (I4).
                if await self._undo(session, message) and await self.inbox.already_processed(message.message_id):
                    return Outcome.DUPLICATE
                raise
        return Outcome.HANDLED if handlers else Outcome.UNHANDLED

    async def _handle(self, event: Event, handlers: Sequence[Handler], context: Context[Any]) -> None:
        rolled_back = context.session.info[_WATCH] = _RollbackWatch()
        for handler in handlers:
            limit = handler.timeout_seconds or self._timeout_seconds
            try:
                async with asyncio.timeout(limit) as timeout:
                    await handler.function(event, context)
            except TimeoutError as error:
                if not timeout.expired():
                    raise
                raise HandlerTimeoutError(
                    f"{handler.name} ran longer than {limit:g} seconds; give it a higher timeout_seconds, or less to do"
                ) from error
            if rolled_back:
                raise RolledBackError(
                    f"{handler.name} rolled back or closed the transaction that all handlers of a message share, and "
                    "with it what ran before. Raise to fail the message, or use a savepoint: "
                    "async with session.begin_nested()."
                )

    async def _undo(self, session: AsyncSession, message: Message) -> bool:
        """Rolls the attempt back. Returns False if a handler had committed it already, inbox row included (I3)."""
        undone = await self.inbox.abandon(session, message.message_id)
        if not undone:
            logger.warning(
                "a handler committed the inbox row by itself and the message failed after it; "
                "the remaining handlers will never run for this message",
                message_id=str(message.message_id),
                event_type=message.event_type,
            )
        return undone

    def _context(self, session: AsyncSession, message: Message, attempt: int) -> Context[Any]:
        return Context(
            session=session,
            message_id=message.message_id,
            attempt=attempt,
            headers=message.headers,
            occurred_on=message.occurred_on,
            resources=self._resources,
        )


@dataclass(slots=True)
class _RollbackWatch:
    """True once the session's whole transaction ended without a commit: rolled back, or closed with the session."""

    has_happened: bool = False
    is_committed: bool = False

    def __bool__(self) -> bool:
        return self.has_happened


@session_event.listens_for(MailroomSession, "after_commit")
def _note_the_commit(session: Session) -> None:
    watch: _RollbackWatch | None = session.info.get(_WATCH)
    if watch is not None:
        watch.is_committed |= session.get_nested_transaction() is None


@session_event.listens_for(MailroomSession, "after_transaction_end")
def _note_the_end(session: Session, transaction: SessionTransaction) -> None:
    watch: _RollbackWatch | None = session.info.get(_WATCH)
    if watch is not None and transaction.parent is None:
        watch.has_happened |= not watch.is_committed
        watch.is_committed = False
