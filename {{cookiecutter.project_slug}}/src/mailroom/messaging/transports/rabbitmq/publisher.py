"""Publishing with confirms, many messages in flight over one channel (contract R3, R4, F1)."""

import asyncio
from collections.abc import Awaitable, Callable

from aiormq import spec
from aiormq.exceptions import AMQPChannelError, ChannelNotFoundEntity, DeliveryError

from mailroom.errors import ConnectionLostError, PublishError, TransportUnavailableError
from mailroom.messaging.transports.rabbitmq.link import LOST, Link, describe
from mailroom.messaging.transports.rabbitmq.outgoing import Outgoing, OverdueError


class Publisher:
    """Hands messages to the broker, and returns once it has confirmed them."""

    def __init__(self, link: Link, *, confirm_timeout_seconds: float, prepare: Callable[[], Awaitable[None]]) -> None:
        """`prepare` makes what is published to, before the first message of each connection."""
        self._link = link
        self._confirm_timeout_seconds = confirm_timeout_seconds
        self._prepare = prepare
        self._outgoing: Outgoing | None = None
        self._opening = asyncio.Lock()

    @property
    def in_flight(self) -> int:
        """How many messages the broker has not answered for yet."""
        return 0 if self._outgoing is None else len(self._outgoing)

    async def open(self) -> None:
        """Raises TransportUnavailableError if the broker is not there, ConfigurationError if it holds other things."""
        await self._open()

    async def send(self, exchange: str, routing_key: str, body: bytes, properties: spec.Basic.Properties) -> bool:
        """Returns, once the broker is answerable for the message, whether a queue took it.

        Raises what `Transport.publish` raises: a loss of the connection, or of the channel with other messages on it,
        makes suspects of all that were in flight.
        """
        outgoing = self._outgoing
        if outgoing is None or outgoing.is_closed:
            outgoing = await self._open()
        try:
            return await outgoing.publish(exchange, routing_key, body, properties)
        except DeliveryError as error:
            raise PublishError("the broker refused the message (a negative confirm)") from error
        except OverdueError as error:
            await self._link.close()
            raise ConnectionLostError(
                f"the broker did not confirm the message within {self._confirm_timeout_seconds:g} seconds "
                "(rabbitmq.confirm_timeout_seconds)"
            ) from error
        except ChannelNotFoundEntity as error:
            raise TransportUnavailableError(f"what is published to is not there: {describe(error)}") from error
        except AMQPChannelError as error:  # nothing else was on it: then it is this message's own doing
            raise PublishError(f"the broker closed the channel: {describe(error)}") from error
        except LOST as error:
            reason = f"the connection broke while the message was in flight: {describe(error)}"
            raise ConnectionLostError(reason) from error

    async def close(self) -> None:
        self._outgoing = None
        await self._link.close()

    async def _open(self) -> Outgoing:
        async with self._opening:
            if self._outgoing is None or self._outgoing.is_closed or not self._link.is_open:
                await self._prepare()
                channel = await self._link.channel(confirms=True)
                self._outgoing = Outgoing(channel, bound_seconds=self._confirm_timeout_seconds)
            return self._outgoing
