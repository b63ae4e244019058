"""Where a process can be made to kill itself: points in the life of an event, and the n-th time it comes by there.

The framework has no hooks for that. The process about to die wraps its methods, or listens to its engine's commits.
"""

import functools
import os
import signal
from collections.abc import Callable
from contextvars import ContextVar
from inspect import iscoroutinefunction
from typing import Any

from sqlalchemy import event

from mailroom import Mailroom
from mailroom.messaging.consumer import Consumer
from mailroom.outbox.cleanup import OutboxCleanup
from mailroom.outbox.leases import Leases
from mailroom.outbox.writer import OutboxWriter

Hit = Callable[[], None]
Arm = Callable[[Mailroom, Hit], None]


def before(owner: type, name: str) -> Arm:
    return lambda mailroom, hit: _wrap(owner, name, entered=hit)


def after(owner: type, name: str) -> Arm:
    """After a call that brought something, or has nothing to bring."""
    return lambda mailroom, hit: _wrap(owner, name, left=lambda result: None if result in (None, []) else hit())


def after_every(owner: type, name: str) -> Arm:
    return lambda mailroom, hit: _wrap(owner, name, left=lambda result: hit())


def at_commit_in(owner: type, name: str) -> Arm:
    """Everything is written, and COMMIT is the next statement."""

    def arm(mailroom: Mailroom, hit: Hit) -> None:
        is_inside = ContextVar("is_inside", default=False)
        _wrap(owner, name, entered=lambda: is_inside.set(True), left=lambda result: is_inside.set(False))
        event.listen(mailroom.database.engine.sync_engine, "commit", lambda _: hit() if is_inside.get() else None)

    return arm


def in_the_inbox(arm: Callable[[type, str], Arm]) -> Arm:
    """Whichever inbox the posture chose."""
    return lambda mailroom, hit: arm(type(mailroom.consumer.inbox), "complete")(mailroom, hit)


POINTS: dict[str, Arm] = {
    "after the insert": after(OutboxWriter, "seal"),
    "after the commit": before(OutboxWriter, "deliver"),
    "after the claim": after(Leases, "claim"),
    "after the take-over": after(Leases, "take_over"),
    "before the handler": before(Consumer, "_handle"),
    "after the handler": after_every(Consumer, "_handle"),
    "before the handler's commit": in_the_inbox(at_commit_in),
    "after the handler's commit": in_the_inbox(after_every),
    "before the stamp": before(Leases, "write_back"),
    "before the stamp's commit": at_commit_in(Leases, "write_back"),
    "after the stamp": after_every(Leases, "write_back"),
    "before the cleanup's commit": at_commit_in(OutboxCleanup, "_delete"),
    "after the cleanup": after_every(OutboxCleanup, "run_once"),
}

TAKE_OVER = "after the take-over"


def arm(mailroom: Mailroom, point: str, nth: int) -> None:
    """Kills this process when it comes by that point for the n-th time."""
    times = 0

    def hit() -> None:
        nonlocal times
        times += 1
        if times == nth:
            die()

    POINTS[point](mailroom, hit)


def die() -> None:
    """Nothing is flushed, closed, rolled back or said."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _wrap(
    owner: type,
    name: str,
    *,
    entered: Callable[[], Any] = lambda: None,
    left: Callable[[Any], Any] = lambda result: None,
) -> None:
    wrapped = getattr(owner, name)

    if iscoroutinefunction(wrapped):

        @functools.wraps(wrapped)
        async def wrapper(*args: Any, **more: Any) -> Any:
            entered()
            result = await wrapped(*args, **more)
            left(result)
            return result

    else:

        @functools.wraps(wrapped)
        def wrapper(*args: Any, **more: Any) -> Any:
            entered()
            result = wrapped(*args, **more)
            left(result)
            return result

    setattr(owner, name, wrapper)
