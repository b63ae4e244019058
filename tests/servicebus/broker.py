"""The AMQP side as a whole: it listens, knows its connections, and hands out what is ready."""

import asyncio
from collections.abc import Callable
from typing import Protocol
from urllib.parse import urlsplit

from .connection import Connection, Handler
from .faults import Faults
from .namespace import DEAD_LETTERS, Namespace
from .tokens import Key

TICK_SECONDS = 0.02


class Served(Handler, Protocol):
    """What the broker wants of a connection's links."""

    def pump(self) -> bool: ...

    def drain(self) -> None: ...


def address_of(address: str) -> str:
    """A path in lower case; the client gives `amqps://host:port/path`."""
    return urlsplit(address).path.strip("/").lower() if "://" in address else address.strip("/").lower()


class Broker:
    """`serve` makes what handles the events of one connection."""

    def __init__(self, key: Key, serve: Callable[["Broker", Connection], Served]) -> None:
        self.namespace = Namespace()
        self.faults = Faults()
        self.key = key
        self.connections: dict[Connection, Served] = {}
        self.accepted = 0
        self.port = 0
        self._serve = serve
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens where it did before, if it did."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._connection, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        """Listens no more, and breaks off every connection: nobody holds a lock any more."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop_connections()
        self.namespace.lose_locks()

    def drop_connections(self) -> int:
        """Returns how many there were."""
        dropped = list(self.connections)
        for connection in dropped:
            connection.abort()
        return len(dropped)

    async def run(self) -> None:
        """Lets time pass, until it is cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.namespace.pass_time()
            self.pump()
            for connection in list(self.connections):
                connection.tick()

    def pump(self) -> None:
        """Hands out what is ready, one for each link in turn."""
        while sum(links.pump() for links in list(self.connections.values())):
            pass
        for connection, links in list(self.connections.items()):
            links.drain()
            connection.flush()

    def is_enabled(self, path: str) -> bool:
        entity = self.namespace.target(path)
        queue = self.namespace.source(path.removesuffix(DEAD_LETTERS))
        return all(each.limits.is_enabled for each in (entity, queue) if each is not None)

    def _connection(self) -> asyncio.Protocol:
        if self.faults.refuses_connections:
            return Refuse()
        self.accepted += 1
        return Connection(lambda connection: self._serve(self, connection), self.pump)


class Refuse(asyncio.Protocol):
    """A connection that is broken off as soon as it is there."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()
