"""What a test does with a composed service: deliver, relay, let time pass, look at both tables."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import object_session

from mailroom import events, serialization
from mailroom.events import Event
from mailroom.host import Mailroom
from mailroom.messaging.consumer import Outcome
from mailroom.outbox.inspection import Entry
from mailroom.outbox.selection import EVERYTHING, Selection, State, is_in
from mailroom.persistence import capture, schema
from mailroom.persistence.tables import InboxMessage, OutboxMessage
from mailroom.testing.clock import Clock
from mailroom.testing.failures import Failures

E = TypeVar("E", bound=Event)

SHOWN_ROWS = 20
ROUNDS = 1_000
"""So many rounds of a drain are no longer retries, but events without end."""


class Harness:
    """A composed service in the hands of a test; a context manager. Its clock decides what is due.

    Whatever the posture is, handlers run in the test's own task or in one that it waits for. Where two are in use, the
    clock of the inner one says when new events happen; `clock` lets them share one.
    """

    def __init__(self, mailroom: Mailroom, *, clock: Clock | None = None) -> None:
        self.mailroom = mailroom
        self.clock = clock or Clock()
        self._raised: list[Event] = []
        self._use: ExitStack | None = None

    def __enter__(self) -> Self:
        if self._use is not None:
            raise RuntimeError("this harness is in use already, by an outer block or by the fixture")
        self._use = ExitStack()
        self._use.callback(self.mailroom.observe(self._raised.extend))
        for source in self.mailroom.data_sources.values():
            self._use.enter_context(source.database.going_by(self.clock))
        self._use.callback(setattr, events, "now", events.now)
        events.now = self.clock
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._use is not None:
            self._use.close()
            self._use = None

    def raised(self, event: type[E]) -> list[E]:
        """The events of this type that were committed while in use, in order; `raised(Event)` for all of them."""
        return [one for one in self._raised if isinstance(one, event)]

    async def deliver(self, event: Event, *, attempt: int = 1) -> Outcome:
        """Hands one event to its handlers, as a broker or the relay would. Deliver it again for a duplicate.

        Raises what the handlers raised; nothing of the attempt is kept then.
        """
        return await self.mailroom.consumer.consume(serialization.encode(event), attempt)

    @contextmanager
    def failing(
        self, handler: Callable[..., Awaitable[None]], *, times: int = 1, error: BaseException | None = None
    ) -> Iterator[Failures]:
        """Lets a handler do its work and then fail, the first `times` times that it runs in this block.

        Raises LookupError if it is no handler of this service, ValueError if an outer block lets it fail already, and
        AssertionError at the end of the block if it did not fail that often.
        """
        failing = [one.function.function for one in self.mailroom.handlers if isinstance(one.function, Failures)]
        if handler in failing:
            raise ValueError(f"an outer block lets {handler.__qualname__} fail already; give that one more `times`")
        failures = Failures(handler, times, error)
        self.mailroom.handlers.replace(handler, failures)
        try:
            yield failures
        finally:
            self.mailroom.handlers.replace(failures, handler)
        failures.check()

    async def relay_once(self) -> int:
        """Sends what is due now, and what that raises; each row is tried once. Returns how many were taken."""
        return await self.mailroom.drain()

    async def drain(self) -> int:
        """Relays until nothing is pending, moving the clock past every backoff and delay. Returns how many were taken.

        Raises AssertionError if that never happens, and RuntimeError outside of its block, where no clock can move.
        """
        if self._use is None:
            raise RuntimeError("this harness is not in use: it needs its block, with Harness(mailroom) as harness")
        taken = 0
        for _ in range(ROUNDS):
            taken += await self.relay_once()
            left = (await self.mailroom.outbox.stats()).pending
            if not left:
                return taken
            due = await self._next_due()
            if due is not None:  # else what is left has become due just now
                self.clock.move(seconds=max(0.0, (due - self.clock()).total_seconds()) + 0.001)
        raise AssertionError(f"the outbox does not become quiet: {left} rows are still pending{await self._shown()}")

    async def outbox(self, event: type[Event] | None = None) -> list[Entry]:
        """The rows of the outbox, the oldest first: of one event, or of all."""
        selection = EVERYTHING if event is None else Selection(event_type=event.event_name)
        newest_first = await self.mailroom.outbox.entries(selection, limit=sys.maxsize)
        return newest_first[::-1]

    async def inbox(self) -> list[UUID]:
        """The message ids that the inbox remembers, the oldest first."""
        async with self.mailroom.reader() as session:
            return list((await session.scalars(select(InboxMessage.message_id).order_by(InboxMessage.id))).all())

    async def assert_outbox(self, *, pending: int = 0, processed: int = 0, dead_lettered: int = 0) -> None:
        """The outbox holds exactly so many rows of each kind; what is not named is none."""
        stats = await self.mailroom.outbox.stats()
        found = {"pending": stats.pending, "processed": stats.processed, "dead-lettered": stats.dead_lettered}
        expected = {"pending": pending, "processed": processed, "dead-lettered": dead_lettered}
        if found != expected:
            raise AssertionError(f"the outbox holds {_counts(found)}, not {_counts(expected)}{await self._shown()}")

    async def assert_handled(self, event: Event, *, times: int = 1) -> None:
        """The inbox remembers this very event (`times=0`: it does not). Raises AssertionError also if it is off."""
        if not self.mailroom.posture.inbox.enabled:
            raise AssertionError("the inbox is off, so it remembers nothing; set message_bus.enable_inbox = true")
        found = (await self.inbox()).count(event.message_id)
        if found != times:
            raise AssertionError(
                f"{event.event_name} {event.message_id} is in the inbox {found} times, not {times}{await self._shown()}"
            )

    async def _next_due(self) -> datetime | None:
        """When the next row that is not due yet becomes due, by the harness's clock; None if none ever does."""
        row = OutboxMessage
        waiting = select(func.min(row.available_on)).where(is_in(State.PENDING), row.available_on > self.clock())
        leased = select(func.min(row.locked_until)).where(is_in(State.LEASED))
        async with self.mailroom.reader() as session:
            moments = [(await session.execute(question)).scalar_one() for question in (waiting, leased)]
        return min((moment for moment in moments if moment is not None), default=None)

    async def _shown(self) -> str:
        """The rows as lines of a message."""
        lines = [
            f"\n  {row.id} {row.event_type} {row.state}, {row.attempts} failed attempts"
            + (f", the last one: {row.last_error}" if row.last_error else "")
            for row in await self.outbox()
        ]
        more = len(lines) - SHOWN_ROWS
        return "".join(lines[:SHOWN_ROWS]) + (f"\n  and {more} more" if more > 0 else "")


def _counts(rows: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in rows.items())


def raised_by(instance: object) -> Sequence[Event]:
    """What an entity has raised and no commit has kept yet. It needs no database, nor a session."""
    session = object_session(instance)
    if session is None:
        return [raised.event for raised in capture.held_by(instance)]
    return [raised.event for raised in capture.pending(session) if raised.source is instance]


@asynccontextmanager
async def migrated(mailroom: Mailroom, *, ini: Path) -> AsyncIterator[Mailroom]:
    """The service with its database at the newest migration; gives back every connection at the end."""
    try:
        for name, source in mailroom.data_sources.items():
            await schema.upgrade(source.database.engine, ini=ini, source=name)
        yield mailroom
    finally:
        await mailroom.close()
