"""The seam between mailroom and a broker: `Transport`, and what a broker adds: `Receives`, `Broker`."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from mailroom.checks import Check
from mailroom.envelope import Message
from mailroom.service import Service


class Transport(Service, Protocol):
    """Carries integration events to whoever handles them.

    `publish` returns only once the message is safe (a broker confirmed it) or handled (in_process). It raises
    TransportUnavailableError if it was not sent because there is no connection, ConnectionLostError if the
    connection broke while it was in flight, Reject or UndecodableError if it can never be sent, and anything
    else for a failure of this message. It is called concurrently, and keeps no order of its own.
    """

    async def publish(self, message: Message, attempt: int) -> None: ...


@runtime_checkable
class Connects(Protocol):
    """What a transport adds that needs a connection."""

    async def connect(self) -> None:
        """Connects now. Raises TransportUnavailableError, with what to do, if that is not possible."""
        ...


@runtime_checkable
class Receives(Protocol):
    """What a transport adds that also delivers: a broker. In process, publishing is delivering."""

    @property
    def receiver(self) -> Service:
        """Takes messages from the broker and hands them to the handlers; started last, and stopped first."""
        ...


Progress = Callable[[int], None]
"""Is told after each batch how many messages are done so far; what it raises ends the work between two batches."""


def ignore(done: int) -> None:
    """For nobody who wants to know the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One message that was given up, as it lies on the broker."""

    message_id: str
    """As its publisher wrote it; where there was none, one that follows from what the message is."""
    event_type: str
    reason: str
    exception: str | None
    attempts: int
    redeliveries: int
    first_seen: datetime | None
    size: int
    """Of the payload, in bytes."""
    headers: dict[str, Any]
    payload: str | None = None
    """None unless it was asked for: it may hold personal data."""
    stack: str | None = None
    """As the payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """What became of dead letters that were replayed or discarded."""

    messages: int
    missing: tuple[str, ...] = ()
    """The ids that are not there."""


class DeadLetters(Protocol):
    """What an operator does with the messages that one service gave up (contract I7).

    Safe to interrupt, and beside others that do the same: a message leaves only once it is elsewhere, so it can
    double, and not be lost. No ids are all of them. Everything raises TransportUnavailableError if the broker is away.
    """

    @property
    def place(self) -> str:
        """What the broker calls the place where they are."""
        ...

    async def count(self) -> int:
        """How many there are. Raises MailroomError if there is no place for them."""
        ...

    async def entries(
        self, *, ids: Collection[str] = (), limit: int | None = None, with_payload: bool = False
    ) -> list[DeadLetter]:
        """In the order in which the broker hands them out: looking may change it. They stay where they are."""
        ...

    async def replay(
        self, ids: Collection[str] = (), *, limit: int | None = None, progress: Progress = ignore
    ) -> Removed:
        """Gives them to the service once more, with all attempts before them."""
        ...

    async def discard(
        self, ids: Collection[str] = (), *, limit: int | None = None, progress: Progress = ignore
    ) -> Removed:
        """Deletes them for good."""
        ...


class PartState(StrEnum):
    """How a part of the topology fares."""

    PRESENT = "there"
    MISSING = "missing"
    DIFFERENT = "different"
    """There under its name, and not what the settings ask for."""
    UNWANTED = "unwanted"
    """There, and no handler wants it any more."""
    UNKNOWN = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing on the broker that the service wants, or no longer wants."""

    kind: str
    """What the broker calls such things: exchange, queue, binding."""
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    state: PartState = PartState.UNKNOWN
    problem: str | None = None
    """How it differs, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What was found on the broker."""

    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    """What could not be looked at, and what would allow it."""

    def those(self, state: PartState) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.state is state)


class Provisioning(Protocol):
    """What a service needs on its broker, and whether it is there."""

    def wanted(self) -> tuple[Part, ...]:
        """What the settings and the handlers ask for; asks no broker."""
        ...

    async def survey(self) -> Survey:
        """What is there, compared with what is wanted. Changes nothing."""
        ...

    async def apply(self) -> Survey:
        """Makes what is missing, and returns what was found before. Raises ConfigurationError if something differs."""
        ...

    def export(self) -> str:
        """The same as a file that the broker's own tools read; asks no broker."""
        ...

    async def prune(self, unwanted: Iterable[Part], progress: Progress = ignore) -> None:
        """Removes parts that are not wanted."""
        ...


@runtime_checkable
class Broker(Protocol):
    """What a transport adds that operators have something to do with. In process there is nothing of the kind."""

    @property
    def dead_letters(self) -> DeadLetters: ...

    @property
    def provisioning(self) -> Provisioning: ...

    def examine(self, command: str) -> AsyncIterator[Check]:
        """Yields what `doctor` says about the broker. `command` is the service's command line."""
        ...
