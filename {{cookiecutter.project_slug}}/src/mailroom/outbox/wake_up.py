"""Relays in other processes learn of a commit at once, where the database has a channel for that (contract R7).

It is told after the commit, and what was committed meanwhile is told together: a NOTIFY inside of the transactions
would make their commits wait for each other. Nothing depends on it. What is not heard, polling finds.
"""

import asyncio
from collections.abc import Callable, Iterable

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from mailroom.backoff import backoff_seconds
from mailroom.events import Kind
from mailroom.log import get_logger
from mailroom.persistence.database import Database
from mailroom.persistence.engines.base import Channel
from mailroom.service import UNDOING_SECONDS, end

logger = get_logger(__name__)

CHECK_SECONDS = 15.0
"""How often a connection on which nothing is heard is asked whether it is still there: it may be half-open."""
ANSWER_SECONDS = 5.0
"""How long it may take to answer."""

Wake = Callable[[Iterable[Kind]], None]


class WakeUp:
    """Both ends of the channel of one data source. Where there is none, nothing happens."""

    def __init__(self, database: Database, wake: Wake) -> None:
        self._database = database
        self._wake = wake
        self._untold: set[Kind] = set()
        self._telling: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    def tell(self, kinds: Iterable[Kind]) -> None:
        """Something of these kinds was committed here. Returns at once."""
        if self._database.channel is None:
            return
        self._untold.update(kinds)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), name="outbox notification")

    async def start(self) -> None:
        channel = self._database.channel
        if channel is not None:
            self._listening = asyncio.create_task(self._keep_listening(channel), name="outbox listener")

    async def stop(self) -> None:
        if self._listening is not None:
            await end([self._listening], again_seconds=UNDOING_SECONDS)
            self._listening = None

    async def close(self) -> None:
        """Waits until everything is told."""
        if self._telling is not None:
            await asyncio.wait([self._telling], timeout=ANSWER_SECONDS)

    async def _tell(self) -> None:
        channel = self._database.channel
        while channel is not None and self._untold:
            kinds, self._untold = self._untold, set()
            try:
                async with self._database.connection() as connection:
                    await connection.execute(channel.notify(" ".join(sorted(kinds))))
            except Exception:
                logger.debug("relays elsewhere were not told of a commit; they find it by polling", exc_info=True)

    async def _keep_listening(self, channel: Channel) -> None:
        failures = 0
        while True:
            try:
                async with self._database.listening() as connection:
                    if await channel.is_shared(connection, self._database.listening):
                        logger.info(
                            "a pooler shares sessions between transactions, so relays hear of no commit; polling finds "
                            "what other processes commit"
                        )
                        return
                    lost = asyncio.Event()
                    await channel.listen(connection, self._hear, lost.set)
                    if failures:
                        logger.info("the outbox listener is connected again")
                    failures = 0
                    self._wake(Kind)  # of what was committed while nobody listened
                    await _watch(connection, lost)
            except Exception as error:
                failures += 1
                log = logger.warning if failures == 1 else logger.debug
                log("the outbox listener has no connection; polling carries on, and it tries again", reason=str(error))
            await asyncio.sleep(backoff_seconds(failures, base=0.5, cap=30))

    def _hear(self, message: str) -> None:
        self._wake([kind for kind in Kind if kind.value in message.split()])


async def _watch(connection: AsyncConnection, lost: asyncio.Event) -> None:
    """Raises once the connection is gone, or does not answer any more."""
    while True:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await lost.wait()
        except TimeoutError:
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.execute(select(1))
        else:
            raise ConnectionError("the server ended the connection")
