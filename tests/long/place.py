"""A place in the chaos test where one process works, is killed again and again, and is replaced at once."""

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from crew import Worker
from evidence import Evidence

RANDOM = "at a random moment"
Death = str | None
"""At a named point, or at a random moment."""


@dataclass
class Role:
    """What all who do the same job have in common: where they work, and how they are to die, one after the other."""

    name: str
    job: str
    evidence: Evidence
    how: dict[str, Any]
    deaths: Iterator[Death]


@dataclass
class Place:
    """One process at a time. It dies only when it is told to, and ends only when it is asked to."""

    role: Role
    worker: Worker
    chance: Random
    died: Counter[str] = field(default_factory=Counter)
    """How often it was killed at each point."""
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._is_up = self._is_doomed = False
        self._end: signal.Signals | None = None
        self._point: Death = None
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def kill(self) -> bool:
        """At once, or as soon as it comes by its point. False if it is dying already."""
        with self._lock:
            if not self._is_up or self._is_doomed:
                return False
            self._is_doomed = True
            self._signal(signal.SIGUSR1 if self._point else signal.SIGKILL)
            return True

    def finish_off(self) -> None:
        """Kills it at once if it has not yet come by the point at which it should die."""
        with self._lock:
            if self._is_up and self._is_doomed:
                self._point = None
                self._signal(signal.SIGKILL)

    def ask_to_end(self) -> None:
        with self._lock:
            self._end = signal.SIGTERM
            if self._is_up:
                self._signal(signal.SIGTERM)

    def abandon(self) -> None:
        """Whatever became of it, even if it never came up: nobody works here any more."""
        with self._lock:
            self._end = signal.SIGKILL
            self._signal(signal.SIGKILL)
        self._thread.join()

    def show_stacks(self) -> None:
        with self._lock:
            if self._is_up:
                self._signal(signal.SIGUSR2)

    def wait(self, seconds: float) -> None:
        """Raises if it has not ended by then, or not as it was asked to."""
        self._thread.join(seconds)
        if self.failure is not None:
            raise self.failure
        assert not self._thread.is_alive(), f"a {self.role.name} has not ended {seconds:g} seconds after SIGTERM"

    def _signal(self, number: signal.Signals) -> None:
        with suppress(AssertionError, ProcessLookupError):  # one that was told to die may just have done so
            self.worker.signal(number)

    def _live(self) -> None:
        try:
            while self._end is None:
                self._work_until_killed()
        except BaseException as error:
            self.failure = error

    def _work_until_killed(self) -> None:
        point = next(self.role.deaths)
        self.worker.start(
            self.role.job, self.role.evidence, point=point, seed=self.chance.randrange(2**32), **self.role.how
        )
        self.worker.read_until("ready")
        with self._lock:
            self._point, self._is_up, self._is_doomed = point, True, False
            if self._end is not None:
                self._signal(self._end)
        status, _ = self.worker.wait()
        with self._lock:
            self._is_up = False
        if self._end is signal.SIGKILL or (self._end is signal.SIGTERM and status == 0):
            return
        if status != -signal.SIGKILL or not self._is_doomed:
            raise AssertionError(f"a {self.role.name} ended with {status}, and nobody had asked for that")
        self.died[self._point or RANDOM] += 1
