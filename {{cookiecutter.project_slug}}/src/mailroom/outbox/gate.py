"""Lets many rows be in flight at once, or one row alone.

A row whose relay was killed may have killed it. It is handled alone, so that if it does so again, no other row is
charged for it (contract R6).
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Gate:
    """Shared by the lanes whose rows are handled in one process."""

    def __init__(self) -> None:
        self._inside = 0
        self._is_closed = False
        self._changed = asyncio.Condition()
        self._turn = asyncio.Lock()

    async def enter(self) -> None:
        """Waits while one row is alone, then counts one more."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._is_closed)
            self._inside += 1

    async def leave(self, rows: int = 1) -> None:
        async with self._changed:
            self._inside -= rows
            self._changed.notify_all()

    async def look_again(self) -> None:
        """Something outside of the gate has changed; whoever waits asks again."""
        async with self._changed:
            self._changed.notify_all()

    def add(self, rows: int) -> None:
        """Counts more rows for somebody who is inside."""
        self._inside += rows

    @asynccontextmanager
    async def alone(self, *, unless: Callable[[], bool] = lambda: False) -> AsyncIterator[None]:
        """Keeps newcomers out, waits until everybody has left, and is then the only one.

        Nobody is waited for while `unless` says so: a lane that stops must not wait for rows that cannot be written
        back. `look_again` asks it once more.
        """
        async with self._turn:
            self._is_closed = True
            try:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._inside == 0 or unless())
                yield
            finally:
                self._is_closed = False
                await self.look_again()
