"""A handler that fails the first few times, after it has done its work: what it did must be undone."""

from collections.abc import Awaitable, Callable
from typing import Any


class SimulatedError(Exception):
    """What a handler raises that a test lets fail."""


class Failures:
    """Stands in for a handler; counts how many failures there were."""

    def __init__(self, function: Callable[..., Awaitable[None]], times: int, error: BaseException | None) -> None:
        if times < 1:
            raise ValueError(f"a handler fails at least once, not {times} times")
        self.happened = 0
        self.times = times
        self._function = function
        self._error = error or SimulatedError(f"{function.__qualname__} was told to fail")

    async def __call__(self, event: Any, context: Any) -> None:
        await self._function(event, context)
        if self.happened < self.times:
            self.happened += 1
            raise self._error

    def check(self) -> None:
        """Raises AssertionError if the handler ran less often than it was to fail."""
        if self.happened < self.times:
            raise AssertionError(
                f"{self._function.__qualname__} was to fail {self.times} times, and ran {self.happened} times; "
                "is its event raised, and does the outbox run (message_bus.enable_outbox) that tries again?"
            )
