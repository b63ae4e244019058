"""The client's connection, for many messages in flight at once.

As it comes, the client queues ten frames for each connection, so publishers wait for one another, and gives each frame
to the system alone. Here they all find room, and what is written in one turn of the loop is sent at once.
"""

import asyncio
from typing import Any

import aiormq
from aiormq.exceptions import AMQPConnectionError
from yarl import URL

FRAMES = 10_000
"""How many frames may wait to be written or read: more than the messages that are ever in flight."""


class Connection(aiormq.Connection):
    FRAME_BUFFER_SIZE = FRAMES

    def __init__(self, url: URL) -> None:
        super().__init__(url, transport_factory=_Gathering())


class _Gathering(aiormq.TransportFactory):
    async def create(self, url: URL, **how: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        provider = how.pop("ssl_context_provider")
        tls = await provider.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        assert url.host is not None
        assert url.port is not None  # the client has put in what the URL left out
        try:
            transport, protocol = await loop.create_connection(
                lambda: asyncio.StreamReaderProtocol(reader, loop=loop), url.host, url.port, ssl=tls, **how
            )
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        return reader, _GatheringWriter(transport, protocol, reader, loop)


class _GatheringWriter(asyncio.StreamWriter):
    def __init__(self, *of_what: Any) -> None:
        super().__init__(*of_what)
        self._gathered: list[bytes] = []

    def write(self, data: Any) -> None:
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._send)
        self._gathered.append(data)

    async def drain(self) -> None:
        self._send()
        await super().drain()

    def write_eof(self) -> None:
        self._send()
        super().write_eof()

    def close(self) -> None:
        self._send()
        super().close()

    def _send(self) -> None:
        if self._gathered:
            data, self._gathered = self._gathered, []
            super().write(b"".join(data))
