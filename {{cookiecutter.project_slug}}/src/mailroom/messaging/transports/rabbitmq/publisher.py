"""Publishing with confirms, many messages in flight over one channel (contract R3, R4, F1)."""

import asyncio
from collections.abc import Awaitable, Callable

from aiormq import Channel, spec
from aiormq.exceptions import AMQPChannelError, ChannelNotFoundEntity, DeliveryError

from mailroom.errors import ConnectionLostError, PublishError, TransportUnavailableError
from mailroom.messaging.transports.rabbitmq.link import LOST, Link, describe
from mailroom.service import is_being_cancelled


class Publisher:
    """Hands messages to the broker, and returns once it has confirmed them."""

    def __init__(self, link: Link, *, confirm_timeout_seconds: float, prepare: Callable[[], Awaitable[None]]) -> None:
        """`prepare` makes what is published to, before the first message of each connection."""
        self._link = link
        self._timeout = confirm_timeout_seconds
        self._prepare = prepare
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()
        self._in_flight = 0

    async def open(self) -> None:
        """Raises TransportUnavailableError if the broker is not there, ConfigurationError if it holds other things."""
        await self._open()

    async def send(self, exchange: str, routing_key: str, body: bytes, properties: spec.Basic.Properties) -> bool:
        """Returns, once the broker is answerable for the message, whether a queue took it.

        Raises what `Transport.publish` raises: a loss of the connection, or of the channel with other messages on it,
        makes suspects of all that were in flight.
        """
        channel = self._channel
        if channel is None or channel.is_closed:
            channel = await self._open()
        self._in_flight += 1
        try:
            answer = await channel.basic_publish(
                body,
                exchange=exchange,
                routing_key=routing_key,
                properties=properties,
                mandatory=True,
                timeout=self._timeout,
                wait=False,
            )
        except DeliveryError as error:
            raise PublishError("the broker refused the message (a negative confirm)") from error
        except TimeoutError as error:
            await self._link.close()
            raise ConnectionLostError(
                f"the broker did not confirm the message within {self._timeout:g} seconds "
                "(rabbitmq.confirm_timeout_seconds)"
            ) from error
        except LOST as error:
            raise self._loss(error) from error
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            raise self._loss(error) from error
        finally:
            self._in_flight -= 1
        return isinstance(answer, spec.Basic.Ack)

    async def close(self) -> None:
        self._channel = None
        await self._link.close()

    async def _open(self) -> Channel:
        async with self._opening:
            if self._channel is None or self._channel.is_closed or not self._link.is_open:
                await self._prepare()
                self._channel = await self._link.channel(confirms=True)
            return self._channel

    def _loss(self, error: BaseException) -> Exception:
        """Only the channel went, and nothing else was on it: then it is this message's own doing."""
        if isinstance(error, ChannelNotFoundEntity):
            return TransportUnavailableError(f"what is published to is not there: {describe(error)}")
        if isinstance(error, AMQPChannelError) and self._in_flight == 1:
            return PublishError(f"the broker closed the channel: {describe(error)}")
        return ConnectionLostError(f"the connection broke while the message was in flight: {describe(error)}")
