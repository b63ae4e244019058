"""One connection to the broker: opened when it is needed, and opened again after it broke (contract R4)."""

import asyncio
from functools import partial
from typing import Any, cast

from aiormq import Channel
from aiormq.exceptions import AMQPError, ChannelInvalidStateError, InvalidFrameError, ProbableAuthenticationError
from yarl import URL

from mailroom.errors import LoginRefusedError, TransportUnavailableError
from mailroom.messaging.transports.rabbitmq.connection import FRAMES, Connection
from mailroom.service import is_being_cancelled
from mailroom.settings import RabbitMQSettings

LOST = (AMQPError, OSError, RuntimeError)
"""What the client raises once channel or connection are no longer there; a RuntimeError says "not opened"."""


class Link:
    """A connection of its own for one purpose: a broker that holds publishers back holds back no acknowledgement."""

    def __init__(self, settings: RabbitMQSettings, name: str) -> None:
        """`name` is shown by the broker's management page."""
        self._settings = settings
        self._name = name
        self._connection: Connection | None = None
        self._opening = asyncio.Lock()
        self.problem: str | None = "not connected yet"
        """Why there is no connection; None while there is one."""
        self.lost = asyncio.Event()
        """Set while there is no connection."""
        self.lost.set()

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.is_opened

    async def channel(self, *, confirms: bool = False) -> Channel:
        """A new channel. Raises TransportUnavailableError if the broker cannot be reached.

        With `confirms`, what is published on it is confirmed, and what cannot be routed comes back.
        """
        connection = await self._open()
        try:
            async with asyncio.timeout(self._settings.connect_timeout_seconds):
                channel = await connection.channel(
                    publisher_confirms=confirms, frame_buffer_size=FRAMES, on_return_raises=False
                )
                return cast(Channel, channel)
        except (*LOST, TimeoutError) as error:
            await self.close()
            raise self._unavailable(describe(error)) from error
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            raise self._unavailable(describe(error)) from error

    async def close(self) -> None:
        """Gives the connection up; whatever waits on it is told. The next channel opens another one."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self.problem = "not connected"
        self.lost.set()
        try:
            async with asyncio.timeout(self._settings.connect_timeout_seconds):
                await connection.close()
        except (*LOST, TimeoutError):
            pass

    async def _open(self) -> Connection:
        async with self._opening:
            if self._connection is not None and self.is_open:
                return self._connection
            await self.close()
            connection = Connection(self._url())
            try:
                async with asyncio.timeout(self._settings.connect_timeout_seconds):
                    await connection.connect()
            except ProbableAuthenticationError as error:
                self.problem = f"{self._settings.safe_url} refuses the login: {describe(error)}"
                raise LoginRefusedError(
                    f"{self.problem}; check user, password and virtual host in rabbitmq.url"
                ) from error
            except InvalidFrameError as error:  # the client keeps the broker's own words to itself
                host = self._settings.virtual_host
                raise self._unavailable(f"there is no virtual host {host}, or it is closed to this user") from error
            except (*LOST, TimeoutError, EOFError) as error:
                raise self._unavailable(describe(error)) from error
            connection.closing.add_done_callback(partial(self._note_loss, connection))
            self._connection = connection
            self.problem = None
            self.lost.clear()
            return connection

    def _url(self) -> URL:
        assert self._settings.url is not None
        url = URL(self._settings.url.get_secret_value())
        return url.update_query({"heartbeat": str(self._settings.heartbeat_seconds), "name": self._name, **url.query})

    def _note_loss(self, connection: Connection, closing: "asyncio.Future[Any]") -> None:
        """Of the connection in use: one that was given up may end long after the next one was opened."""
        if connection is not self._connection:
            return
        error = None if closing.cancelled() else closing.exception()
        self.problem = f"{self._settings.safe_url} closed the connection: {describe(error)}"
        self.lost.set()

    def _unavailable(self, reason: str) -> TransportUnavailableError:
        self.problem = f"{self._settings.safe_url} cannot be reached: {reason}"
        return TransportUnavailableError(
            f"{self.problem}; start the broker (docker compose up -d --wait), or check rabbitmq.url"
        )


def describe(error: BaseException | None) -> str:
    """What went wrong, in the words of the broker or of the system where there are any."""
    if error is None:
        return "without a reason"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ChannelInvalidStateError):  # it names an address in memory
        return "the channel is closed"
    words = " ".join(str(part) for part in error.args if part not in (None, ""))
    return words or type(error).__name__
