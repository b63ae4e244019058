"""One data source: its engine, its sessions, and how its transactions begin.

SQLite has a single writer. `BEGIN IMMEDIATE` takes its place in the queue at the first statement, where the busy
timeout applies; a transaction that read first and writes later would fail at once instead. Readers begin
deferred, so that they never wait.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from mailroom.errors import CaptureError
from mailroom.persistence import capture
from mailroom.persistence.aggregates import MailroomSession
from mailroom.persistence.capture import Observer, Sink
from mailroom.persistence.claims import Claims, claims_for
from mailroom.settings import DatabaseSettings

_BEGIN = "mailroom_begin"


def create_engine(settings: DatabaseSettings) -> AsyncEngine:
    """An engine whose transactions take the writer's place when they begin (SQLite), with a bounded pool."""
    engine = create_async_engine(
        settings.url.get_secret_value(),
        pool_size=settings.pool_size,
        max_overflow=settings.max_overflow,
        pool_timeout=settings.pool_timeout_seconds,
        hide_parameters=True,  # an error is logged and stored with the message, and they may be its payload
        connect_args={"timeout": settings.busy_timeout_seconds},
        execution_options={_BEGIN: "IMMEDIATE"},
    )
    event.listen(engine.sync_engine, "connect", _prepare_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    event.listen(engine.sync_engine, "checkin", _end_sqlite)
    return engine


def reading(engine: AsyncEngine) -> AsyncEngine:
    """The same engine and pool, for transactions that only read: on SQLite they never wait for the writer."""
    return engine.execution_options(**{_BEGIN: "DEFERRED"})


def _prepare_sqlite(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
    connection.isolation_level = None  # the driver must not begin transactions by itself
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options()[_BEGIN]}")


def _end_sqlite(connection: DBAPIConnection | None, _entry: ConnectionPoolEntry) -> None:
    """A COMMIT that SQLite refuses leaves the transaction open, and SQLAlchemy takes it for ended."""
    if connection is not None and connection.driver_connection.in_transaction:
        connection.rollback()


class Database:
    """One data source. Its sessions keep the events that are raised in them (contract O1)."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self.safe_url = settings.safe_url
        self.kind = settings.kind
        self.claims: Claims = claims_for(self.kind)
        self.engine = create_engine(settings)
        self._readers = _sessionmaker(reading(self.engine), {})
        capture.watch(self.engine.sync_engine)

    def sessions(self, sink: Sink, observers: Sequence[Observer] = ()) -> async_sessionmaker[AsyncSession]:
        """Sessions whose events go to `sink`. Objects stay readable after a commit."""
        return _sessionmaker(self.engine, capture.session_info(sink, observers))

    @contextmanager
    def going_by(self, clock: Callable[[], datetime]) -> Iterator[None]:
        """Lets due times, leases and retention go by this clock instead of the database's: for tests alone."""
        before = self.claims
        self.claims = claims_for(self.kind, clock)
        try:
            yield
        finally:
            self.claims = before

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        """A transaction for the framework's own short statements; commits at the end of the block."""
        async with self.engine.begin() as connection:
            yield connection

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[AsyncSession]:
        """A session that only reads. Raises CaptureError if an event was raised in it: it would be lost."""
        async with self._readers() as session:
            yield session
            lost = capture.pending(session.sync_session)
            if lost:
                raise CaptureError(
                    f"{lost[0].event.event_name} was raised in a session that only reads and never commits; "
                    "use mailroom.transaction() instead of mailroom.reader()"
                )

    async def dispose(self) -> None:
        await self.engine.dispose()


def _sessionmaker(engine: AsyncEngine, info: dict[str, Any]) -> async_sessionmaker[AsyncSession]:
    return async_sessionmaker(engine, sync_session_class=MailroomSession, expire_on_commit=False, info=info)
