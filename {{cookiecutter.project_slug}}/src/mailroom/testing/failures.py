"""A handler that fails the first few times, after it has done its work: what it did must be undone."""

from collections.abc import Awaitable, Callable
from functools import update_wrapper
from typing import Any


class SimulatedError(Exception):
    """What a handler raises that a test lets fail."""


class Failures:
    """Stands in for a handler; counts how many failures there were."""

    def __init__(self, function: Callable[..., Awaitable[None]], times: int, error: BaseException | None) -> None:
        if times < 1:
            raise ValueError(f"a handler fails at least once, not {times} times")
        update_wrapper(self, function)  # errors and logs name the handler
        self.function = function
        self.happened = 0
        self.times = times
        self._other: Exception | None = None
        self._error = error or SimulatedError(f"{function.__qualname__} was told to fail")

    async def __call__(self, event: Any, context: Any) -> None:
        try:
            await self.function(event, context)
        except Exception as error:
            self._other = error
            raise
        if self.happened < self.times:
            self.happened += 1
            raise self._error

    def check(self) -> None:
        """Raises AssertionError if the handler failed less often than it was told to; its own error is the cause."""
        if self.happened < self.times:
            instead = f"it raised {self._other!r}" if self._other else "it did not get to its end that often"
            raise AssertionError(
                f"{self.function.__qualname__} was to fail {self.times} times, and did {self.happened} times: "
                f"{instead}; is its event raised, and does the outbox run (message_bus.enable_outbox) that tries again?"
            ) from self._other
