"""One data source: its engine, its sessions, and how its transactions begin."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

from mailroom.errors import CaptureError
from mailroom.persistence import capture
from mailroom.persistence.aggregates import MailroomSession
from mailroom.persistence.capture import Observer, Sink
from mailroom.persistence.claims import Claims, claims_for
from mailroom.persistence.engines import check_present, engine_kind
from mailroom.persistence.engines.base import READS_ONLY
from mailroom.settings import DatabaseSettings

READ_COMMITTED = "READ COMMITTED"


def create_engine(settings: DatabaseSettings) -> AsyncEngine:
    """An engine with a bounded pool, and what its kind of database needs (see `engines`).

    Raises ConfigurationError if the project was made without that kind.
    """
    return _engine(
        settings,
        pool_size=settings.pool_size,
        max_overflow=settings.max_overflow,
        pool_timeout=settings.pool_timeout_seconds,
    )


def _engine(settings: DatabaseSettings, **pool: Any) -> AsyncEngine:
    check_present(settings)
    kind = engine_kind(settings.backend)
    engine = create_async_engine(
        settings.url.get_secret_value(),
        hide_parameters=True,  # an error is logged and stored with the message, and they may be its payload
        **{**kind.options(settings), **pool},
    )
    kind.prepare(engine, settings)
    return engine


def reading(engine: AsyncEngine) -> AsyncEngine:
    """The same engine and pool, for transactions that only read: on SQLite they never wait for the writer."""
    return engine.execution_options(**{READS_ONLY: True})


class Database:
    """One data source. Its sessions keep the events that are raised in them (contract O1)."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self.safe_url = settings.safe_url
        self.kind = settings.kind
        self.engine = create_engine(settings)
        self.channel = engine_kind(settings.backend).channel
        self.claims: Claims = claims_for(self.kind)
        self._settings = settings
        self._own = self.engine
        if settings.isolation_level != READ_COMMITTED:
            self._own = self.engine.execution_options(isolation_level=READ_COMMITTED)
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
        """A transaction for the framework's own short statements; commits at the end of the block.

        It is READ COMMITTED whatever the service's own transactions are: each of these statements stands alone.
        """
        async with self._own.begin() as connection:
            yield connection

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[AsyncConnection]:
        """A connection outside of the pool, and outside of transactions, that may be kept for as long as is wanted."""
        engine = _engine(self._settings, poolclass=NullPool, pool_pre_ping=False, isolation_level="AUTOCOMMIT")
        async with engine.connect() as connection:
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
