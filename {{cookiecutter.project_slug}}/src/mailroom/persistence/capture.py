"""The write point: every event that a session commits is kept, every event that it rolls back is not (O1-O3).

The session keeps what was raised in a ledger, so an aggregate that goes out of sight still counts. The ledger is
sealed when the *connection* commits, not when the session says `before_commit`: that is the last moment before
COMMIT on every way to commit. Savepoints are released by then, later listeners have run, and the rows are
inserted last. What cannot be sealed fails the commit:

    raise_event ─► ledger ─► connection commits: seal (encode, insert) ─► COMMIT ─► root transaction ends: deliver
                     │
                     └─ savepoint or transaction rolls back: forget, or hand back to objects that are transient again

`after_transaction_end` of the root is where delivery starts: the connection is back in its pool by then, which
`after_commit` cannot say.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet, ref

from sqlalchemy import Connection, Engine, event, inspect
from sqlalchemy.orm import Session, SessionTransaction

from mailroom.envelope import Message
from mailroom.errors import CaptureError
from mailroom.events import Event

LONGEST_DELAY = timedelta(days=36_500)
"""A hundred years: later than that no database's calendar is asked."""

_SINK = "mailroom.sink"
_OBSERVERS = "mailroom.observers"
_LEDGER = "mailroom.ledger"
_SOURCE = "mailroom.source"


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """One event as it was raised, with how it wants to be sent."""

    event: Event
    headers: Mapping[str, str]
    ordering_key: str | None = None
    delay: timedelta | None = None
    not_before: datetime | None = None
    source: object | None = None
    """The aggregate. Where a rollback makes it transient again, it gets the event back."""

    def __post_init__(self) -> None:
        name = type(self.event).event_name
        if self.delay is not None and self.not_before is not None:
            raise ValueError(f"{name}: give either a delay or a time not before which it is sent, not both")
        if self.ordering_key is not None and (self.delay is not None or self.not_before is not None):
            raise ValueError(
                f"{name}: an event with an ordering key cannot be delayed, since its successors would overtake it; "
                "drop the delay or the ordering key"
            )
        if self.delay is not None and not timedelta(0) <= self.delay <= LONGEST_DELAY:
            raise ValueError(f"{name}: the delay must lie between 0 and {LONGEST_DELAY.days} days, not {self.delay}")
        if self.not_before is not None and self.not_before.tzinfo is None:
            raise ValueError(f"{name}: not_before has no time zone; pass an aware datetime")

    @property
    def is_delayed(self) -> bool:
        return self.delay is not None or self.not_before is not None


class Sink(Protocol):
    """Where sealed events go. One exists per data source; the posture decides which."""

    def seal(self, connection: Connection, raised: Sequence[Raised]) -> Sequence[Message]:
        """Encodes the events, and stores them if the outbox is on, as the last statements before COMMIT.

        What it raises fails the commit; nothing is stored then.
        """
        ...

    def deliver(self, messages: Sequence[Message]) -> None:
        """Runs after COMMIT, with the connection back in its pool. Never raises: the commit stands."""
        ...


Observer = Callable[[Sequence[Event]], None]
"""Told which events a commit has kept, before anybody handles them. What it raises comes out of the commit."""


@dataclass(slots=True)
class _Ledger:
    """What one session has raised since its transaction began."""

    raised: list[Raised] = field(default_factory=list)
    starts: dict[SessionTransaction, int] = field(default_factory=dict)
    """Where each open savepoint began. One that is older than the ledger began at 0."""
    released: set[SessionTransaction] = field(default_factory=set)
    sealed: Sequence[Message] = ()
    is_committed: bool = False


_sessions: WeakKeyDictionary[Connection, ref[Session]] = WeakKeyDictionary()
"""Which session began the transaction that a connection is in."""
_open_sessions: WeakKeyDictionary[asyncio.Task[Any], WeakSet[Session]] = WeakKeyDictionary()


def session_info(sink: Sink, observers: Sequence[Observer] = ()) -> dict[str, Any]:
    """The `info` of the sessions whose events go to this sink; who is added to `observers` later is told as well."""
    return {_SINK: sink, _OBSERVERS: observers}


def watch(engine: Engine) -> None:
    """Makes the commits of this engine's connections seal what their sessions raised."""
    event.listen(engine, "commit", _seal)


def record(session: Session, raised: Raised) -> None:
    """Keeps an event until the session's transaction ends. It is committed with it, or not at all (contract O1)."""
    if not session.in_transaction():
        session.begin()
    _ledger_of(session).raised.append(raised)


def pending(session: Session) -> Sequence[Raised]:
    """What this session has raised and not committed yet, in order."""
    ledger: _Ledger | None = session.info.get(_LEDGER)
    return tuple(ledger.raised) if ledger else ()


def task_has_open_transaction() -> bool:
    """Whether the running task began a transaction, in a session that mailroom knows, and has not ended it."""
    task = _running_task()
    return task is not None and any(session.in_transaction() for session in _open_sessions.get(task, ()))


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs here
        return None


def _ledger_of(session: Session) -> _Ledger:
    ledger: _Ledger = session.info.setdefault(_LEDGER, _Ledger())
    return ledger


@event.listens_for(Session, "after_transaction_create")
def _remember_start(session: Session, transaction: SessionTransaction) -> None:
    ledger: _Ledger | None = session.info.get(_LEDGER)
    if transaction.nested and ledger is not None:
        ledger.starts[transaction] = len(ledger.raised)
    if transaction.parent is None and _SINK in session.info:
        task = _running_task()
        if task is not None:
            _open_sessions.setdefault(task, WeakSet()).add(session)


@event.listens_for(Session, "after_begin")
def _remember_connection(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    if _SINK not in session.info or transaction.nested:
        return
    source = session.info.setdefault(_SOURCE, connection.engine.url)
    if source != connection.engine.url:
        raise CaptureError(
            "This session is bound to more than one data source, which cannot commit together: what it raises could be "
            "kept in one and lost with the other. One session is one source; open one for each."
        )
    _sessions.setdefault(connection, ref(session))  # a session that joins it later commits nothing


@event.listens_for(Session, "before_commit")
def _make_sure_the_commit_is_seen(session: Session) -> None:
    ledger: _Ledger | None = session.info.get(_LEDGER)
    if ledger is None or not ledger.raised:
        return
    names = ", ".join(sorted({type(raised.event).event_name for raised in ledger.raised}))
    if _SINK not in session.info:
        raise CaptureError(
            f"This session does not belong to a Mailroom, so nobody would ever send what it raised ({names}). "
            "Nothing was committed. Open the session with mailroom.transaction() or mailroom.sessions()."
        )
    if isinstance(session.get_bind(), Connection):
        raise CaptureError(
            f"This session is joined to a connection whose commit mailroom cannot see, so what it raised ({names}) "
            "might be sent although the outer transaction rolls back. Nothing was committed. "
            "Bind the session to the engine instead of a connection."
        )
    if session.twophase:
        raise CaptureError(
            f"Two-phase commits are not supported for sessions that raise events ({names}). Nothing was committed."
        )
    session.connection()


def _seal(connection: Connection) -> None:
    session = _sessions[connection]() if connection in _sessions else None
    if session is None:
        return
    ledger: _Ledger | None = session.info.get(_LEDGER)
    if ledger is not None and ledger.raised:
        sink: Sink = session.info[_SINK]
        try:
            ledger.sealed = sink.seal(connection, tuple(ledger.raised))
        except BaseException:
            # SQLAlchemy takes a transaction whose commit failed for ended, and would pool the connection as it is.
            with suppress(Exception):  # a connection that is gone has nothing to roll back
                connection.dialect.do_rollback(connection.connection)
            raise


@event.listens_for(Session, "after_commit")
def _note_the_commit(session: Session) -> None:
    ledger: _Ledger | None = session.info.get(_LEDGER)
    if ledger is None:
        return
    savepoint = session.get_nested_transaction()
    if savepoint is not None:
        ledger.released.add(savepoint)
        return
    if len(ledger.sealed) != len(ledger.raised):
        names = ", ".join(sorted({type(raised.event).event_name for raised in ledger.raised}))
        raise CaptureError(
            f"Events were raised too late to be committed ({names}): while the commit was already under way, in a "
            "transaction that had not touched the database. Raise them before the commit."
        )
    ledger.is_committed = True


@event.listens_for(Session, "after_transaction_end")
def _end(session: Session, transaction: SessionTransaction) -> None:
    ledger: _Ledger | None = session.info.get(_LEDGER)
    if ledger is None:
        return
    if transaction.nested:
        start = ledger.starts.pop(transaction, 0)
        if transaction in ledger.released:
            ledger.released.discard(transaction)
        else:
            _forget(ledger, start)
        return
    if transaction.parent is not None:
        return
    if not ledger.is_committed:
        _forget(ledger, 0)
    sealed, ledger.sealed = ledger.sealed, ()
    was_committed, ledger.is_committed = ledger.is_committed, False
    events = [raised.event for raised in ledger.raised]
    ledger.raised.clear()
    ledger.starts.clear()
    ledger.released.clear()
    if was_committed and sealed:
        sink: Sink = session.info[_SINK]
        try:
            for observer in session.info[_OBSERVERS]:
                observer(events)
        finally:
            sink.deliver(sealed)


def _forget(ledger: _Ledger, start: int) -> None:
    """Drops what was raised since `start`; an object that is transient again gets its events back.

    A rollback leaves such an object as it was changed, to be added again; so its events must come along again.
    """
    for raised in ledger.raised[start:]:
        if raised.source is not None and inspect(raised.source).transient:
            held_by(raised.source).append(raised)
    del ledger.raised[start:]


def held_by(instance: object) -> list[Raised]:
    """The events of an object that is in no session yet."""
    held: list[Raised] = instance.__dict__.setdefault("_mailroom_raised", [])
    return held


def take_over(session: Session, instance: object) -> None:
    """Moves the events that an object held into the session that it joined."""
    held: list[Raised] | None = instance.__dict__.pop("_mailroom_raised", None)
    for raised in held or ():
        record(session, raised)


@event.listens_for(Session, "after_attach")
def _collect(session: Session, instance: object) -> None:
    if "_mailroom_raised" in instance.__dict__:
        take_over(session, instance)
