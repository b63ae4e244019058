"""The one way in which everything that runs is started and stopped, and what of it may report how it fares."""

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

AGAIN_SECONDS = 2.0
"""How long a task may take to end before it is cancelled once more."""
UNDOING_SECONDS = 45.0
"""The same for one that may hold a database connection: longer than it may wait for a lock there. Who interrupts the
close of a connection leaves it open."""


class Service(Protocol):
    """Something that runs beside the code of the user, from the start of a host to its end.

    `start` returns once it runs. `stop` returns once nothing of it runs any more; it may be called twice, and
    before `start`, and then does nothing.
    """

    @property
    def name(self) -> str:
        """The name that `posture` shows."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@runtime_checkable
class ReportsFailure(Protocol):
    """What a service adds that can end although nobody stopped it. The host is not live then (contract A2)."""

    def failure(self) -> str | None:
        """What of it ended, without secrets; None while all of it runs. Asked between `start` and `stop` only."""
        ...


@runtime_checkable
class ReportsConnection(Protocol):
    """What a service adds that needs a connection, as the transport of a broker does (contract A2).

    Without it the host is live, since a restart would not help, and not ready.
    """

    def disconnection(self) -> str | None:
        """Why there is no connection, without secrets; None while there is one. Asked as `failure` is."""
        ...


def is_being_cancelled() -> bool:
    """Whether somebody cancels the running task. If not, a CancelledError in it is a failure like any other: it comes
    from something else that was cancelled and that a handler waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def end(
    tasks: "Iterable[asyncio.Task[Any]]", *, again_seconds: float | None = None, are_told: bool = False
) -> None:
    """Cancels tasks, and returns once they have ended, however that was. `are_told`: they were cancelled just now.

    A client that is in the middle of a handshake may swallow a cancellation, and so may a handler. So they are told
    again until they heed it.
    """
    running = {task for task in tasks if not task.done()}
    while running:
        if not are_told:
            for task in running:
                task.cancel()
        are_told = False
        _, running = await asyncio.wait(running, timeout=AGAIN_SECONDS if again_seconds is None else again_seconds)


def ended(tasks: Iterable["asyncio.Task[Any] | None"]) -> str | None:
    """Which of the tasks that run as long as their service does has ended, and how; None if none has."""
    return next((f"the task {task.get_name()!r} {_how(task)}" for task in tasks if task and task.done()), None)


def _how(task: "asyncio.Task[Any]") -> str:
    if task.cancelled():
        return "was cancelled"
    error = task.exception()
    return "returned" if error is None else f"failed with {type(error).__name__}"
