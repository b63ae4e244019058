"""RabbitMQ for tests: names of their own on one broker, a look past mailroom, and a proxy that cuts connections.

The broker is the one that TEST_RABBITMQ_URL names, else the one that compose.yaml runs on this machine.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from support import Compose, quick

from mailroom import Handlers, Mailroom
from mailroom.messaging.transports.rabbitmq import RabbitMQTransport
from mailroom.testing.databases import is_required

HERE = "amqp://guest:guest@127.0.0.1:5672/"


def url() -> str:
    return os.environ.get("TEST_RABBITMQ_URL") or HERE


@cache
def _refusal(address: str) -> str | None:
    async def connect() -> None:
        await (await aio_pika.connect(address, timeout=5)).close()

    try:
        asyncio.run(connect())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def need_broker() -> None:
    """Skips the test, with the reason, if there is no broker; fails it where TEST_REQUIRE names rabbitmq."""
    reason = _refusal(url())
    if reason is None:
        return
    what = f"no rabbitmq: start the broker, or let TEST_RABBITMQ_URL name one ({reason})"
    if is_required("rabbitmq"):
        pytest.fail(what)
    pytest.skip(what)


class Broker:
    """The broker as one test sees it: an exchange and a prefix that nobody else has."""

    def __init__(self, address: str) -> None:
        self.url = address
        self.prefix = f"bank-{uuid4().hex[:12]}"
        self.exchange = f"{self.prefix}-events"
        self.queue = f"{self.prefix}.events"
        self.dead_letters = f"{self.prefix}.dead-letters"
        self._prefixes = [self.prefix]

    def settings(self, **bus: Any) -> dict[str, Any]:
        """The sections `message_bus` and `rabbitmq`, quick to retry and to reconnect."""
        quick = {
            "retry_limit": 1,
            "retry_min_interval_seconds": 0.05,
            "retry_max_interval_seconds": 0.2,
            "redelivery_intervals_seconds": [0.3],
        }
        return {
            "message_bus": {"provider": "rabbitmq", "endpoint_prefix": self.prefix, **quick, **bus},
            "rabbitmq": {"url": self.url, "exchange": self.exchange},
        }

    def another_service(self) -> str:
        """A further prefix on the same exchange; its queues are deleted as well."""
        self._prefixes.append(f"{self.prefix}-{len(self._prefixes)}")
        return self._prefixes[-1]

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[AbstractChannel]:
        connection = await aio_pika.connect(url())
        try:
            yield await connection.channel(on_return_raises=True)
        finally:
            await connection.close()

    async def publish(self, body: bytes, **properties: Any) -> None:
        """Puts a message into the service's queue, past mailroom."""
        async with self.channel() as channel:
            await channel.default_exchange.publish(aio_pika.Message(body, **properties), self.queue)

    async def length(self, queue: str) -> int:
        async with self.channel() as channel:
            declared = await channel.declare_queue(queue, passive=True)
            return declared.declaration_result.message_count or 0

    async def take(self, queue: str) -> AbstractIncomingMessage | None:
        """Removes the oldest message of a queue, and returns it."""
        async with self.channel() as channel:
            found = await (await channel.get_queue(queue, ensure=False)).get(fail=False)
            if found is not None:
                await found.ack()
            return found

    async def delete(self, queue: str) -> None:
        async with self.channel() as channel:
            await channel.queue_delete(queue)

    async def clean(self) -> None:
        for prefix in self._prefixes:
            for name in ("events", "dead-letters", "redelivery.0.3s", "redelivery.60s", "redelivery.1s"):
                await self.delete(f"{prefix}.{name}")
        async with self.channel() as channel:
            await channel.exchange_delete(self.exchange)


@contextmanager
def broker() -> Iterator[Broker]:
    need_broker()
    own = Broker(url())
    yield own
    with suppress(Exception):
        asyncio.run(own.clean())


def transport_of(mailroom: Mailroom) -> RabbitMQTransport:
    assert isinstance(mailroom.transport, RabbitMQTransport)
    return mailroom.transport


class Proxy:
    """A TCP proxy in front of the broker. It can cut what is connected, refuse what comes, and go silent."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 5672)
        self._parts = parts
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.refuses = False
        self.is_silent = False
        self.connections = 0

    async def start(self) -> str:
        """Returns the URL of the broker through it."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user = f"{self._parts.username}:{self._parts.password}@" if self._parts.username else ""
        return urlunsplit(self._parts._replace(netloc=f"{user}127.0.0.1:{port}"))

    def cut(self) -> None:
        """Breaks every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        self.connections += 1
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there_writer}
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if self.is_silent:
                    continue
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()
            self._writers.discard(sink)


@asynccontextmanager
async def proxied(own: Broker) -> AsyncIterator[Proxy]:
    """From now on the settings of `own` lead through the proxy."""
    proxy = Proxy(own.url)
    own.url = await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


async def composed(
    compose: Compose,
    broker: Broker,
    *handlers: Handlers,
    sections: dict[str, Any] | None = None,
    **bus: Any,
) -> Mailroom:
    settings = broker.settings(**bus)
    settings["rabbitmq"]["heartbeat_seconds"] = 1
    return await compose(*handlers, **quick(settings, sections))
