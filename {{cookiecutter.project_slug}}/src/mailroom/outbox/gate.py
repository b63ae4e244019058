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
        self._waiting: list[asyncio.Future[None]] = []
        self._turn = asyncio.Lock()

    async def enter(self) -> None:
        """Waits while one row is alone, then counts one more."""
        await self._until(lambda: not self._is_closed)
        self._inside += 1

    def add(self, rows: int) -> None:
        """Counts more rows for somebody who is inside."""
        self._inside += rows

    def leave(self, rows: int = 1) -> None:
        self._inside -= rows
        self.look_again()

    def look_again(self) -> None:
        """Something has changed; whoever waits asks again."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    @asynccontextmanager
    async def alone(self, *, unless: Callable[[], bool] = lambda: False) -> AsyncIterator[None]:
        """Keeps newcomers out, waits until everybody has left, and is then the only one.

        Nobody is waited for while `unless` says so: a lane that stops must not wait for rows that cannot be written
        back. `look_again` asks it once more.
        """
        async with self._turn:
            self._is_closed = True
            try:
                await self._until(lambda: self._inside == 0 or unless())
                yield
            finally:
                self._is_closed = False
                self.look_again()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            changed = asyncio.get_running_loop().create_future()
            self._waiting.append(changed)
            await changed
