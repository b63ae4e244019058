"""Messages in hand: each is locked for this service for a while, and the lock is renewed as long as it is needed."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusReceivedMessage

from mailroom.errors import TransportUnavailableError
from mailroom.log import get_logger
from mailroom.messaging.transports.azure_service_bus.intake import Intake
from mailroom.messaging.transports.azure_service_bus.refusals import LockLostError

logger = get_logger(__name__)

LOOK_SECONDS = 1.0
"""How often locks are looked at; the shortest lasts five times as long."""


@dataclass(eq=False, slots=True, kw_only=True)
class Held:
    """One message in hand."""

    message: ServiceBusReceivedMessage
    intake: Intake
    """Over which it came; nothing else can settle it."""
    since: datetime
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is known that the message is no longer ours."""
    _is_renewed: bool = True

    @property
    def locked_until(self) -> datetime:
        return self.message.locked_until_utc or self.since

    @property
    def is_ours(self) -> bool:
        return not self.lost.is_set() and self.intake.loss is None and self.locked_until > datetime.now(UTC)

    async def renew(self, *, lock_seconds: float, limit_seconds: float) -> None:
        """Once half of the lock is over, for `limit_seconds` at most. What is lost is told once."""
        now = datetime.now(UTC)
        if not self._is_renewed or self.locked_until - now > timedelta(seconds=lock_seconds / 2):
            return
        if now - self.since > timedelta(seconds=limit_seconds):
            self._is_renewed = False
            self._tell(
                "a message is handled for so long that its lock is not renewed any more",
                setting=f"service_bus.lock_renewal_limit_seconds = {limit_seconds:g}",
            )
            return
        try:
            await self.intake.renew(self.message)
        except LockLostError as error:
            self.lose(str(error))
        except TransportUnavailableError as error:
            logger.debug("a lock could not be renewed, trying again", reason=str(error))

    async def give_back(self) -> None:
        """It comes again at once, and not only after its lock has run out; if that can be said."""
        if not self.is_ours:
            return
        try:
            await self.intake.abandon(self.message)
        except (LockLostError, TransportUnavailableError) as error:
            logger.debug("a message could not be given back; its lock runs out", reason=str(error))

    def lose(self, reason: str) -> None:
        if not self.lost.is_set():
            self.lost.set()
            self._tell("the lock of a message was lost", reason=reason)

    def _tell(self, what: str, **facts: str) -> None:
        logger.warning(
            what,
            message_id=self.message.message_id,
            event_type=self.message.subject,
            consequence="it comes a second time, to this instance or to another; the inbox keeps its effects single",
            **facts,
        )


class Holding:
    """Everything that is in hand."""

    def __init__(self, *, lock_seconds: float, limit_seconds: float) -> None:
        self._lock_seconds = lock_seconds
        self._limit_seconds = limit_seconds
        self._held: set[Held] = set()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, held: Held) -> None:
        self._held.add(held)

    def remove(self, held: Held) -> None:
        self._held.discard(held)

    async def keep(self) -> None:
        """Renews locks until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for held in list(self._held):
                if held in self._held:  # it may have been settled meanwhile
                    await self._renew(held)

    async def _renew(self, held: Held) -> None:
        """One that cannot be renewed leaves the others alone."""
        try:
            await held.renew(lock_seconds=self._lock_seconds, limit_seconds=self._limit_seconds)
        except Exception:
            logger.exception("a lock could not be renewed, trying again")

    async def give_back(self) -> None:
        """Whatever is left."""
        while self._held:
            await self._held.pop().give_back()
