"""The seam `EngineKind`: what differs between databases outside of the statements."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from sqlalchemy import Connection, Executable
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from mailroom.settings import DatabaseSettings

READS_ONLY = "mailroom_reads_only"
"""The execution option of transactions that never write."""

Connect = Callable[[], AbstractAsyncContextManager[AsyncConnection]]

START_OR_CHECK = "start the server (docker compose up -d --wait), or check DATABASE__URL"


class Channel(Protocol):
    """How processes on one database wake each other up (contract R7)."""

    def notify(self, message: str) -> Executable:
        """Tells every listener, once it is committed."""
        ...

    async def listen(self, connection: AsyncConnection, heard: Callable[[str], None], lost: Callable[[], None]) -> None:
        """From now on `heard` is told every message, and `lost` that the connection is gone, if that is noticed."""
        ...

    async def is_shared(self, connection: AsyncConnection, connect: Connect) -> bool:
        """Whether something between here and the server gives the session to others meanwhile: nothing would be heard.

        `connect` makes another connection, where that is needed to find out.
        """
        ...


class EngineKind(Protocol):
    """One kind of database."""

    unreachable: tuple[type[Exception], ...]
    """What connecting may raise beside SQLAlchemy's own errors, if nobody answers or nobody is let in."""
    channel: Channel | None
    """None where a relay learns of other processes' commits by polling alone."""

    def options(self, settings: DatabaseSettings) -> dict[str, Any]:
        """What `create_async_engine` is given beside the pool's sizes."""
        ...

    def remedy(self, error: BaseException) -> str:
        """What to do about an error of the driver that keeps the database from being used."""
        ...

    def prepare(self, engine: AsyncEngine, settings: DatabaseSettings) -> None:
        """Listens to what the engine's connections go through."""
        ...

    def before_migrating(self, connection: Connection) -> None:
        """Runs first in the transaction of migrations: one process at a time migrates, without a limit of time."""
        ...
