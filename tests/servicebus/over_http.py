"""The administration client speaks https and nothing else; this carries what it says over http to a local port."""

from typing import Any
from urllib.parse import urlsplit, urlunsplit

from azure.core.pipeline.transport import AioHttpTransport


class OverHttp(AioHttpTransport):  # type: ignore[misc]
    """A transport for `ServiceBusAdministrationClient(..., transport=...)`, against a server without TLS."""

    def __init__(self, port: int, **settings: Any) -> None:
        super().__init__(**settings)
        self._port = port

    async def send(self, request: Any, **settings: Any) -> Any:
        there = f"127.0.0.1:{self._port}"
        request.url = urlunsplit(urlsplit(request.url)._replace(scheme="http", netloc=there))
        return await super().send(request, **settings)
