"""Waiting for what the broker says: bounded, and told as an error of ours if it goes away meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiormq import Channel

from mailroom.errors import TransportUnavailableError
from mailroom.messaging.transports.rabbitmq.link import LOST, Link, describe
from mailroom.service import is_being_cancelled

ANSWER_SECONDS = 30.0
"""A cluster may take its time to make a queue."""


@asynccontextmanager
async def answered(what: str) -> AsyncIterator[None]:
    """For questions to the broker and nothing else. Raises TransportUnavailableError if it does not answer.

    `what` is what it is asked for, as in "the queue orders".
    """
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            yield
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        raise _silence(what, error) from error  # the client cancels what waits on a connection that broke
    except (*LOST, TimeoutError) as error:
        raise _silence(what, error) from error


@asynccontextmanager
async def asking(link: Link, what: str) -> AsyncIterator[Channel]:
    """A channel of its own, since a refusal closes it. Once the block is left, the broker has done what was asked."""
    channel = await link.channel()
    try:
        yield channel
    except BaseException:
        await discard(channel)
        raise
    async with answered(what):
        await channel.close()


async def discard(channel: Channel) -> None:
    """Closes a channel on which something went wrong already."""
    try:
        async with answered("a channel's end"):
            await channel.close()
    except TransportUnavailableError:
        pass


def _silence(what: str, error: BaseException) -> TransportUnavailableError:
    return TransportUnavailableError(f"the broker did not answer about {what}: {describe(error)}")
