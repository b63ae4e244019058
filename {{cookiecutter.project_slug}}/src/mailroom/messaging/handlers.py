"""Which functions handle which events, and what they are given."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from typing import Any, Generic, TypeVar
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from mailroom.events import Event
from mailroom.persistence import capture
from mailroom.persistence.aggregates import raised_now

E = TypeVar("E", bound=Event)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Generic[R]):
    """What a handler is given beside the event."""

    session: AsyncSession
    """Shared by all handlers of the message, and committed once, after the last one (contract I2)."""
    message_id: UUID
    """The idempotency key to hand on to whatever is outside this database."""
    attempt: int
    """1 for the first try."""
    headers: Mapping[str, str]
    occurred_on: datetime
    resources: R
    """The user's own clients and clocks, as given to `Mailroom(resources=...)`."""

    def publish(
        self,
        event: Event,
        *,
        ordering_key: str | None = None,
        delay: timedelta | None = None,
        not_before: datetime | None = None,
    ) -> None:
        """Stages an event in this transaction: it is sent if, and only if, the handlers' work commits (O2)."""
        stage(self.session, event, ordering_key=ordering_key, delay=delay, not_before=not_before)


def stage(
    session: AsyncSession,
    event: Event,
    *,
    ordering_key: str | None = None,
    delay: timedelta | None = None,
    not_before: datetime | None = None,
) -> None:
    """Adds an event to the transaction of a session."""
    raised = raised_now(event, ordering_key=ordering_key, delay=delay, not_before=not_before)
    capture.record(session.sync_session, raised)


@dataclass(frozen=True, slots=True)
class Handler:
    """One function that handles one type of event."""

    event: type[Event]
    function: Callable[[Any, Context[Any]], Awaitable[None]]
    timeout_seconds: float | None
    """Its own limit, or None for `handler_timeout_seconds`."""

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"


class Handlers:
    """A module's handlers; several for one event run in the order in which they were added."""

    def __init__(self) -> None:
        self._handlers: dict[type[Event], list[Handler]] = defaultdict(list)

    def on(
        self, event: type[E], *, timeout_seconds: float | None = None
    ) -> Callable[[Callable[[E, Context[Any]], Awaitable[None]]], Callable[[E, Context[Any]], Awaitable[None]]]:
        """Registers the decorated coroutine function for an event. Raises TypeError for what can never be called."""
        if not (isinstance(event, type) and issubclass(event, Event) and getattr(event, "event_name", None)):
            raise TypeError(f"{event!r} is no event with a name; handlers are registered for concrete event classes")
        if timeout_seconds is not None and timeout_seconds <= 0:
            raise ValueError(f"timeout_seconds must be above 0, not {timeout_seconds:g}")

        def register(
            function: Callable[[E, Context[Any]], Awaitable[None]],
        ) -> Callable[[E, Context[Any]], Awaitable[None]]:
            name = getattr(function, "__qualname__", None)
            if name is None or not iscoroutinefunction(function):
                raise TypeError(
                    f"{name or repr(function)} must be a function declared with `async def` to handle "
                    f"{event.event_name}"
                )
            self._handlers[event].append(Handler(event, function, timeout_seconds))
            return function

        return register

    def __iter__(self) -> Iterator[Handler]:
        for handlers in self._handlers.values():
            yield from handlers

    def of(self, event: type[Event]) -> Sequence[Handler]:
        """The handlers of one event, in order."""
        return tuple(self._handlers.get(event, ()))

    def replace(self, function: Callable[..., Awaitable[None]], by: Callable[..., Awaitable[None]]) -> None:
        """Puts `by` in the place of a registered function. Raises LookupError if it is not registered."""
        found = False
        for handlers in self._handlers.values():
            for index, handler in enumerate(handlers):
                if handler.function is function:
                    handlers[index] = replace(handler, function=by)
                    found = True
        if not found:
            raise LookupError(f"{function.__qualname__} handles nothing here")

    @classmethod
    def merged(cls, modules: Iterable["Handlers"]) -> "Handlers":
        """All handlers of several modules, in order."""
        merged = cls()
        for module in modules:
            for handler in module:
                merged._handlers[handler.event].append(handler)
        return merged
