"""One connection: proton's engine between a socket and what is done on it. It does no work of its own."""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import proton

_TRANSFER = re.compile(
    r" (?P<channel>\d+) <- @transfer\(20\) \[handle=\w+, delivery-id=(?P<delivery>\w+)"
    r'(?:, delivery-tag=b"(?:\\.|[^"\\])*")?(?:, message-format=(?P<format>\w+))?'
)


class Handler(Protocol):
    """What is told of the events of a connection, by proton's names for them; and of its end."""

    def on_lost(self) -> None: ...


class Connection(asyncio.Protocol):
    """A server's side. `changed` is called after every turn in which something happened."""

    def __init__(self, handler: Callable[["Connection"], Handler], changed: Callable[[], None]) -> None:
        self.engine = proton.Transport(proton.Transport.SERVER)
        self.engine.sasl().allowed_mechs("ANONYMOUS")
        # Proton does not give the format of a message, but it writes it into its trace, transfer by transfer.
        self.engine.trace(proton.Transport.TRACE_FRM)
        self.engine.tracer = self._read_trace
        self.formats: deque[int] = deque()
        self._last_delivery = ("", "")
        self.endpoint = proton.Connection()
        self._events = proton.Collector()
        self.endpoint.collect(self._events)
        self.engine.bind(self.endpoint)
        self._handler = handler(self)
        self._changed = changed
        self._socket: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and (room := self.engine.capacity()) > 0:
            self.engine.push(bytes(rest[:room]))
            rest = rest[room:]
            self._dispatch()
        self._changed()
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._socket = None
        self._handler.on_lost()
        self._changed()

    def abort(self) -> None:
        """Breaks it off, without a word to the other side."""
        if self._socket is not None:
            self._socket.abort()

    def tick(self) -> None:
        """Heartbeats, if the other side wants them."""
        if not self.engine.closed:
            self.engine.tick(time.monotonic())
            self.flush()

    def flush(self) -> None:
        """Writes what the engine has to say."""
        while self._socket is not None:
            self._dispatch()
            pending = self.engine.pending()
            if pending <= 0:
                if pending < 0 or self.engine.closed:
                    self._socket.close()
                return
            self._socket.write(bytes(self.engine.peek(pending) or b""))
            self.engine.pop(pending)

    def _dispatch(self) -> None:
        while (event := self._events.peek()) is not None:
            event.dispatch(cast(Any, self._handler))
            self._events.pop()

    def _read_trace(self, _: Any, line: str) -> None:
        """A transfer in more than one frame is one message."""
        found = _TRANSFER.search(line)
        if found is None or (delivery := (found["channel"], found["delivery"])) == self._last_delivery:
            return
        self._last_delivery = delivery
        self.formats.append(int(found["format"] or "0", 0))
