"""TLS in front of a broker that speaks none here: a proxy with a certificate of its own."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import trustme


@contextmanager
def tls_before(url: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields an `amqps` URL that leads to the broker at `url`, and the certificate of who signed the proxy's own."""
    authority = trustme.CA()
    certificate = folder / "ca.pem"
    authority.cert_pem.write_to_path(certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    target = urlsplit(url)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(target.hostname, target.port or 5672)
        await asyncio.gather(_pass_on(reader, inner_writer), _pass_on(inner_reader, writer))

    serving = asyncio.start_server(join, "127.0.0.1", 0, ssl=context)
    server = asyncio.run_coroutine_threadsafe(serving, loop).result()
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"amqps://{target.username}:{target.password}@127.0.0.1:{port}{target.path}", certificate
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65_536):
            to.write(data)
            await to.drain()
    to.close()
