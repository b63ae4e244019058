"""What every transport of a broker does alike: it connects at its start, and stays connected (contract R4)."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping

from mailroom.backoff import backoff_seconds
from mailroom.errors import LoginRefusedError, MailroomError, TransportUnavailableError
from mailroom.log import get_logger
from mailroom.service import end, ended
from mailroom.settings import MessageBusSettings

logger = get_logger(__name__)


class Connecting(ABC):
    """A service that connects anew after each loss. A transport says what connecting is."""

    def __init__(self, bus: MessageBusSettings, lost: asyncio.Event, publishes_to: Mapping[str, str]) -> None:
        """`lost` is set while there is no connection; `publishes_to` is told once there is one."""
        self._bus = bus
        self._lost = lost
        self._publishes_to = publishes_to
        self._keeper: asyncio.Task[None] | None = None

    @abstractmethod
    async def connect(self) -> None:
        """Raises TransportUnavailableError if the broker is not there, ConfigurationError if it holds other things."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Nothing is left open."""

    async def start(self) -> None:
        """Connects; where the broker is away, as soon as it is back. The relay waits meanwhile.

        Raises ConfigurationError if what is on the broker cannot be used, LoginRefusedError if it does not let this
        user in.
        """
        try:
            await self.connect()
        except LoginRefusedError:
            raise
        except TransportUnavailableError as error:
            logger.warning("broker unavailable", reason=str(error), consequence="the relay waits; nothing is lost")
        else:
            self._tell_that_it_publishes()
        self._keeper = asyncio.create_task(self._stay_connected(), name="broker publisher")

    async def stop(self) -> None:
        if self._keeper is not None:
            await end([self._keeper])
            self._keeper = None
        await self._disconnect()

    def failure(self) -> str | None:
        return ended([self._keeper])

    async def _stay_connected(self) -> None:
        """Without it a service that has nothing to publish would not be ready again after the broker was away."""
        tries = 0
        while True:
            await self._lost.wait()
            tries += 1
            await asyncio.sleep(
                backoff_seconds(
                    tries, base=self._bus.retry_min_interval_seconds, cap=self._bus.retry_max_interval_seconds
                )
            )
            try:
                await self.connect()
            except MailroomError as error:
                logger.debug("broker unavailable, trying again", reason=str(error))
            else:
                tries = 0
                self._tell_that_it_publishes()

    def _tell_that_it_publishes(self) -> None:
        logger.info("publishing", **self._publishes_to)
