"""Work in batches, with a bar for people; Ctrl-C ends it between two batches."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


class Interrupted(Exception):  # noqa: N818 - what happened, and no error
    """Somebody pressed Ctrl-C; what was finished before is done."""


class LongWork:
    """`await LongWork(...).run(work)`: `work` is given a function to call after each batch with what is done so far."""

    def __init__(self, what: str, *, total: int) -> None:
        self.done = 0
        self._is_stopped = False
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=total)

    async def run(self, work: Callable[[Callable[[int], None]], Awaitable[T]]) -> T:
        """Raises Interrupted after the batch in which Ctrl-C was pressed; `done` counts what was finished."""
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(signal.SIGINT, self._stop)
        except NotImplementedError:  # Windows: Ctrl-C cancels the batch in flight instead
            with self._bar:
                return await work(self._tell)
        try:
            with self._bar:
                return await work(self._tell)
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _stop(self) -> None:
        self._is_stopped = True

    def _tell(self, done: int) -> None:
        self.done = done
        self._bar.update(self._task, completed=done)
        if self._is_stopped:
            raise Interrupted
