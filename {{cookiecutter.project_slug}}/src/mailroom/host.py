"""Composition: from settings to the services that run, and to the handles that user code holds (contract P3, A3)."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, overload

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from mailroom import posture as postures
from mailroom.catalog import EventCatalog
from mailroom.data_source import DataSource
from mailroom.errors import ConfigurationError, DatabaseUnavailableError, OpenTransactionError
from mailroom.events import Event, Kind
from mailroom.health import Examination, Health
from mailroom.health_endpoint import HealthEndpoint
from mailroom.inbox.store import InboxStore, NoOpInboxStore, SqlInboxStore
from mailroom.inbox.warning import InboxDisabledWarning
from mailroom.lifecycle import Lifecycle
from mailroom.log import get_logger
from mailroom.messaging.bus import DirectDispatcher
from mailroom.messaging.consumer import Consumer
from mailroom.messaging.handlers import Handlers, stage
from mailroom.messaging.transports import TransportFactory, transport_factory
from mailroom.messaging.transports.base import Connects, Receives, Transport
from mailroom.outbox.administration import OutboxAdministration
from mailroom.outbox.cleanup import OutboxCleanup
from mailroom.outbox.notice import OutboxDisabledNotice
from mailroom.outbox.processor import OutboxProcessor, Route
from mailroom.persistence import capture
from mailroom.persistence.aggregates import raised_now
from mailroom.persistence.database import Database
from mailroom.persistence.schema import ensure_migrated
from mailroom.service import Service
from mailroom.settings import Settings
from mailroom.settings_sections import DEFAULT_SOURCE

logger = get_logger(__name__)


class Mailroom:
    """A service's events: raise them in a transaction, handle them, and know what happens in between.

    Composing one resolves the posture once (contract P3). Raises ConfigurationError if the settings cannot work.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        handlers: Iterable[Handlers] = (),
        events: Iterable[type[Event]] = (),
        resources: Any = None,
        inbox: InboxStore | None = None,
        transports: Mapping[str, TransportFactory] | None = None,
        command: str = "mailroom",
    ) -> None:
        """`events` names what this service knows but does not handle. `inbox` replaces the table, where it is on.

        `command` is the service's command line, for messages that say what to run.
        """
        self.settings = settings
        self.posture = postures.resolve(settings)
        postures.refuse(self.posture)
        self._command = command
        self.handlers = Handlers.merged(handlers)
        self._check_timeouts()
        self.catalog = EventCatalog(dict.fromkeys([*events, *(handler.event for handler in self.handlers)]))
        self._dispatcher = DirectDispatcher(
            lambda message, attempt: self.consumer.consume(message, attempt),
            cascade_limit=settings.message_bus.cascade_limit,
        )
        self._observers: list[capture.Observer] = []
        self.data_sources = {
            name: DataSource(
                name,
                database,
                settings,
                direct=None if self.posture.outbox.enabled else self._dispatcher,
                observers=self._observers,
            )
            for name, database in settings.sources.items()
        }
        with_inbox = self.data_sources[settings.outbox.data_source]
        self.consumer = Consumer(
            catalog=self.catalog,
            handlers=self.handlers,
            sessions=with_inbox.sessions,
            inbox=self._choose_inbox(inbox, with_inbox),
            resources=resources,
            timeout_seconds=settings.handler_timeout_seconds,
            concurrency=settings.message_bus.concurrency,
        )
        self.transport = self._build_transport(transports or {})
        routes = self._routes()
        for source in self.data_sources.values():
            source.relay_by(routes, self.consumer.gate)
        self._lifecycle = Lifecycle()
        self._essential = dict.fromkeys((DEFAULT_SOURCE, self.posture.inbox_source))
        databases = {name: self.data_sources[name].database for name in self._essential}
        self._examination = Examination(self._lifecycle, databases)
        self.services = self._choose_services()

    @property
    def database(self) -> Database:
        """The default data source's."""
        return self.data_sources[DEFAULT_SOURCE].database

    @property
    def outbox(self) -> OutboxAdministration:
        """The default data source's."""
        return self.data_sources[DEFAULT_SOURCE].outbox

    @property
    def processor(self) -> OutboxProcessor:
        """The default data source's."""
        return self.data_sources[DEFAULT_SOURCE].processor

    @property
    def cleanup(self) -> OutboxCleanup:
        """The default data source's."""
        return self.data_sources[DEFAULT_SOURCE].cleanup

    def data_source(self, name: str) -> DataSource:
        """One data source. Raises ConfigurationError if there is none of that name."""
        if name not in self.data_sources:
            raise ConfigurationError(
                f"there is no data source {name!r}; there are: {', '.join(self.data_sources)}. "
                f"Name its database as data_sources.{name}.url"
            )
        return self.data_sources[name]

    def sessions(self, data_source: str = DEFAULT_SOURCE) -> async_sessionmaker[AsyncSession]:
        """Makes sessions whose events are captured on every way to commit (contract O1). One session is one source."""
        return self.data_source(data_source).sessions

    @asynccontextmanager
    async def transaction(self, data_source: str = DEFAULT_SOURCE) -> AsyncIterator[AsyncSession]:
        """A session that commits at the end of the block: its changes and its events, or neither."""
        async with self.data_source(data_source).transaction() as session:
            yield session

    @asynccontextmanager
    async def reader(self, data_source: str = DEFAULT_SOURCE) -> AsyncIterator[AsyncSession]:
        """A session for reading. On SQLite it never waits for a writer, and never makes one wait."""
        async with self.data_source(data_source).database.reader() as session:
            yield session

    @overload
    def publish(
        self,
        session: AsyncSession,
        event: Event,
        /,
        *,
        ordering_key: str | None = None,
        delay: timedelta | None = None,
        not_before: datetime | None = None,
    ) -> None: ...

    @overload
    def publish(
        self,
        event: Event,
        /,
        *,
        ordering_key: str | None = None,
        delay: timedelta | None = None,
        not_before: datetime | None = None,
    ) -> Awaitable[None]: ...

    def publish(self, *what: Any, **how: Any) -> Awaitable[None] | None:
        """`publish(session, event)` adds the event to that transaction. `await publish(event)` is its own (O2).

        Awaiting raises OpenTransactionError inside an open transaction of this task, where the event could be sent
        although that transaction rolls back; and with the outbox off, what a handler raised.
        """
        match what:
            case [AsyncSession() as session, Event() as event]:
                stage(session, event, **how)
                return None
            case [Event() as event]:
                return self._publish(event, **how)
            case _:
                raise TypeError("publish takes an event, or a session and an event")

    async def _publish(self, event: Event, **how: Any) -> None:
        if capture.task_has_open_transaction():
            raise OpenTransactionError(
                f"publish({event.event_name}) inside an open transaction would send it even if that rolls back; "
                "use publish(session, event), or context.publish(event) in a handler"
            )
        if self.posture.outbox.enabled:
            async with self.transaction() as session:
                stage(session, event, **how)
            return
        (message,) = self._dispatcher.encode([raised_now(event, **how)])
        for observer in self._observers:
            observer([event])
        await self._dispatcher.dispatch(message)

    def observe(self, observer: capture.Observer) -> Callable[[], None]:
        """Lets `observer` know which events each commit has kept: for tests, and for what only looks on.

        Returns a function to call when it need not know any more.
        """
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Mailroom"]:
        """Runs the services inside any event loop; touches no signal handler (contract A3).

        Raises SchemaError, with the command to run, if the database is not migrated.
        """
        async with self._started():
            logger.info(
                "running",
                provider=self.posture.provider,
                database=self.posture.database,
                outbox=self.posture.outbox.enabled,
                inbox=self.posture.inbox.enabled,
                services=", ".join(self.posture.services),
            )
            yield self
        logger.info("stopped")

    async def run(self) -> None:
        """Runs until SIGTERM or SIGINT, then stops within `shutdown_timeout_seconds` (contract R6, A3).

        A signal that comes while the services start, which may wait for a broker, gives up on the start.
        """
        is_up, stop, gave_up = asyncio.Event(), asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def stop_it() -> None:
            if not is_up.is_set() and not stop.is_set():
                gave_up.set()
                task.cancel()
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(number, stop_it)
            except NotImplementedError:
                signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop_it))
        try:
            async with self.running():
                is_up.set()
                await stop.wait()
                logger.info("stopping", within_seconds=self.settings.shutdown_timeout_seconds)
        except asyncio.CancelledError:
            if not gave_up.is_set():
                raise
            task.uncancel()
            logger.info("stopped before it had started")

    async def drain(
        self, progress: Callable[[int], None] = lambda count: None, *, data_source: str | None = None
    ) -> int:
        """Sends what is due in the outbox until nothing is, whatever the posture. Returns how many rows it took.

        In every data source, or in one.
        """
        sources = self.data_sources.values() if data_source is None else [self.data_source(data_source)]
        await self.transport.start()
        done = 0

        def so_far(count: int) -> None:
            progress(done + count)

        try:
            for source in sources:
                done += await source.processor.drain(so_far)
            return done
        finally:
            await self.transport.stop()

    async def ensure_migrated(self, *data_sources: str) -> None:
        """Raises SchemaError, with the command to run, if a database is not migrated to what the code needs.

        Of these data sources, or of all. Raises DatabaseUnavailableError if nobody answers.
        """
        for name in data_sources or self.data_sources:
            engine = self.data_source(name).database.engine
            await ensure_migrated(engine, command=self._command, source=name)

    async def ensure_connected(self) -> None:
        """Raises TransportUnavailableError, with what to do, if the transport needs a connection and gets none now.

        For a command that cannot wait for a broker; `running()` does. The connection is given up again.
        """
        if isinstance(self.transport, Connects):
            try:
                await self.transport.connect()
            finally:
                await self.transport.stop()

    async def _ensure_that_it_can_start(self) -> None:
        """A data source that is away is a WARNING, unless nothing goes without it: its relay works once it is back."""
        for name in self.data_sources:
            try:
                await self.ensure_migrated(name)
            except DatabaseUnavailableError as error:
                if name in self._essential:
                    raise
                logger.warning("data source unavailable", data_source=name, reason=str(error))

    async def health(self) -> Health:
        """Whether this host is live and ready, and what that rests on, within a few seconds (contract A2).

        For an endpoint of the program that embeds it; `health.port` brings one along. Asks the database, unless the
        host is stopping or has stopped.
        """
        return await self._examination.health()

    async def close(self) -> None:
        """Waits for events that are being dispatched, and gives back every connection."""
        try:
            await self._examination.close()
            await self._dispatcher.stop(self.settings.shutdown_timeout_seconds)
        finally:
            for source in self.data_sources.values():
                await source.close()

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[None]:
        try:
            await self._ensure_that_it_can_start()
            async with self._lifecycle.through(self.services):
                yield
        finally:
            await self.close()

    def _check_timeouts(self) -> None:
        lease = self.settings.outbox.lease_seconds
        for handler in self.handlers:
            if handler.timeout_seconds is not None and handler.timeout_seconds >= lease:
                raise ConfigurationError(
                    f"{handler.name} may run for {handler.timeout_seconds:g} seconds, which is not below "
                    f"outbox.lease_seconds = {lease:g}: another relay could take its message over meanwhile. "
                    "Lower the handler's timeout_seconds, or raise the lease."
                )

    def _choose_inbox(self, given: InboxStore | None, source: DataSource) -> InboxStore:
        if not self.posture.inbox.enabled:
            return NoOpInboxStore()
        return SqlInboxStore(source.database, source.sessions) if given is None else given

    def _build_transport(self, factories: Mapping[str, TransportFactory]) -> Transport:
        provider = self.posture.provider
        factory = factories[provider] if provider in factories else transport_factory(provider)
        return factory(self.settings, self.consumer)

    def _routes(self) -> dict[Kind, Route]:
        """Domain events are handled here, integration events go to the transport (contract R0)."""
        is_broker = self.posture.is_broker
        handling = self.consumer.slots
        publishes = nullcontext() if is_broker else handling
        return {
            Kind.DOMAIN: Route(send=self.consumer.consume, slots=handling, is_handled_here=True),
            Kind.INTEGRATION: Route(send=self.transport.publish, slots=publishes, is_handled_here=not is_broker),
        }

    def _choose_services(self) -> list[Service]:
        """What the posture lists, in the order in which it is started, and stopped the other way round.

        A cleanup outlives the relay: it may wait for what a handler keeps locked.
        """
        sources = self.data_sources.values()
        services: list[Service] = [
            HealthEndpoint(self.settings.health, self._examination),
            self.transport,
            *(source.cleanup for source in sources),
            *(source.processor for source in sources),
            OutboxDisabledNotice(self.posture, {name: source.outbox for name, source in self.data_sources.items()}),
            InboxDisabledWarning(self.posture),
            *([self.transport.receiver] if isinstance(self.transport, Receives) else []),
        ]
        connects = {id(self.transport)} if self.posture.is_broker else set()
        return [service for service in services if id(service) in connects or service.name in self.posture.services]
