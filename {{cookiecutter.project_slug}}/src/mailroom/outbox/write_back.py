"""Writes verdicts back as they come, all that have come since the last write in one transaction (contract R2, R3).

While more of what was claimed is being sent, they are gathered for a moment: a write costs as much as sending dozens.
"""

import asyncio
from collections.abc import Callable, Sequence, Sized

from mailroom.backoff import backoff_seconds
from mailroom.log import get_logger
from mailroom.outbox.leases import Leases, Settlement

logger = get_logger(__name__)

GATHERING_SECONDS = 0.01


class WriteBack:
    """Settlements go in by `add`; once written, they go to `settled`. It tries again until the database is back."""

    def __init__(self, leases: Leases, unsettled: Sized, settled: Callable[[Sequence[Settlement]], None]) -> None:
        """`unsettled` holds every row that was claimed and is not settled yet."""
        self._leases = leases
        self._unsettled = unsettled
        self._settled = settled
        self._waiting: list[Settlement] = []
        self._has_more = asyncio.Event()
        self._writing = asyncio.Lock()
        self.task: asyncio.Task[None] | None = None
        """Writes, from `start` to `stop`."""

    def start(self) -> None:
        if self.task is None:
            self.task = asyncio.create_task(self._run(), name="outbox write-back")

    def add(self, settlement: Settlement) -> None:
        self._waiting.append(settlement)
        self._has_more.set()

    async def stop(self) -> None:
        """Writes what is left, once. Raises what the database raised; the leases run out then."""
        if self.task is not None:
            async with self._writing:  # never cancelled between the commit and its consequences
                self.task.cancel()
            await asyncio.wait([self.task])
            self.task = None
        if self._waiting:
            await self._write()

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._has_more.wait()
            if len(self._unsettled) > len(self._waiting):
                await asyncio.sleep(GATHERING_SECONDS)
            try:
                await self._write()
                failures = 0
            except Exception:
                failures += 1
                logger.warning("outbox write-back failed, trying again", exc_info=True)
                await asyncio.sleep(backoff_seconds(failures, base=0.1, cap=5))

    async def _write(self) -> None:
        async with self._writing:
            self._has_more.clear()
            settlements = tuple(self._waiting)
            try:
                lost = await self._leases.write_back(settlements)
            except BaseException:
                self._has_more.set()  # for the next try, or for the next start
                raise
            del self._waiting[: len(settlements)]
            if lost:
                logger.warning(
                    "lease lost before the write-back", rows=lost, consequence="another relay decides about them"
                )
            self._settled(settlements)
