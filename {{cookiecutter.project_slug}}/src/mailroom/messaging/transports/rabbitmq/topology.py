"""What a service needs on its broker, declared so that a redelivery cannot get lost (contract I7, F13).

    mailroom.events ──event name──► shop.events ──given up────────────────► shop.dead-letters
     (topic exchange)                ▲      └─put aside─► shop.redelivery.60s
                                     └──────after 60 s────────┘

Every queue is a durable quorum queue. What one passes on to the next is removed only once the next has it
(`at-least-once`, which needs `reject-publish`).
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiormq import Channel
from aiormq.exceptions import ChannelAccessRefused, ChannelLockedResource, ChannelNotFoundEntity

from mailroom.errors import ConfigurationError, TransportUnavailableError
from mailroom.messaging.transports.rabbitmq.link import LOST, Link, describe, is_conflict
from mailroom.settings import Settings

Ask = Callable[[Channel], Awaitable[None]]
"""A question or a declaration, on a channel of its own."""

MILLISECONDS = 1_000
UNLIMITED = 2**31 - 1
"""Looking at dead letters delivers them; that must not be counted against them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Names and arguments; derived from the settings and from what the service handles."""

    exchange: str
    queue: str
    dead_letters: str
    redelivery: Mapping[float, str]
    """The delay queue of each interval, in seconds."""
    bindings: tuple[str, ...]
    """The events that the queue wants, by name."""
    delivery_limit: int

    @classmethod
    def of(cls, settings: Settings, wanted: Iterable[str]) -> "Topology":
        prefix = settings.message_bus.endpoint_prefix
        return cls(
            exchange=settings.rabbitmq.exchange,
            queue=f"{prefix}.events",
            dead_letters=f"{prefix}.dead-letters",
            redelivery={
                seconds: f"{prefix}.redelivery.{seconds:g}s"
                for seconds in settings.message_bus.redelivery_intervals_seconds
            },
            bindings=tuple(wanted),
            delivery_limit=settings.rabbitmq.delivery_limit,
        )

    @property
    def queues(self) -> dict[str, dict[str, Any]]:
        """Every queue with its arguments; the ones that are passed on to come first."""
        return {
            self.dead_letters: {"x-queue-type": "quorum", "x-delivery-limit": UNLIMITED},
            self.queue: _passing_on_to(self.dead_letters) | {"x-delivery-limit": self.delivery_limit},
            **{
                name: _passing_on_to(self.queue) | {"x-message-ttl": round(seconds * MILLISECONDS)}
                for seconds, name in self.redelivery.items()
            },
        }

    async def declare_exchange(self, link: Link) -> None:
        """Raises ConfigurationError if there is another one of that name."""

        async def declare(channel: Channel) -> None:
            await channel.exchange_declare(self.exchange, exchange_type="topic", durable=True)

        await self._ask(link, f"the exchange {self.exchange}", declare)

    async def declare(self, link: Link) -> None:
        """Makes what is missing, and changes nothing. Raises ConfigurationError if something is there and different."""
        await self.declare_exchange(link)
        if not self.bindings:
            return
        for name, arguments in self.queues.items():
            await self._ask(link, f"the queue {name}", partial(_declare_queue, name=name, arguments=arguments))
        for name in self.bindings:
            await self._ask(link, f"the binding of {name}", partial(self._bind, name=name))

    async def missing(self, link: Link) -> list[str]:
        """What is not there, of the exchange and the queues."""
        exchange, names = self.exchange, self.queues if self.bindings else ()
        things: dict[str, Ask] = {f"the exchange {exchange}": partial(_look_for_exchange, name=exchange)}
        things |= {f"the queue {name}": partial(_look_for_queue, name=name) for name in names}
        return [what for what, look in things.items() if not await self._is_there(link, look)]

    async def unbind(self, link: Link, names: Iterable[str]) -> None:
        """Removes bindings of the queue."""
        for name in names:
            await self._ask(link, f"the binding of {name}", partial(self._unbind, name=name))

    async def _bind(self, channel: Channel, name: str) -> None:
        await channel.queue_bind(self.queue, self.exchange, name)

    async def _unbind(self, channel: Channel, name: str) -> None:
        await channel.queue_unbind(self.queue, self.exchange, name)

    async def _is_there(self, link: Link, look: Ask) -> bool:
        channel = await link.channel()
        try:
            await look(channel)
        except ChannelNotFoundEntity:
            return False
        except LOST as error:
            raise TransportUnavailableError(f"the broker did not answer: {describe(error)}") from error
        await channel.close()
        return True

    async def _ask(self, link: Link, what: str, declare: Ask) -> None:
        channel = await link.channel()  # of its own: a refusal closes it
        try:
            await declare(channel)
        except (ChannelAccessRefused, ChannelLockedResource) as error:
            raise ConfigurationError(
                f"the broker does not let this user declare {what}: {describe(error)}; grant it, or let an operator "
                "make it and set rabbitmq.declare_topology = false"
            ) from error
        except LOST as error:
            if not is_conflict(error):
                raise TransportUnavailableError(f"the broker did not declare {what}: {describe(error)}") from error
            raise ConfigurationError(
                f"{what} is on the broker already, and different from what the settings ask for: {describe(error)}. "
                "Nothing was changed. Bring the settings back to what is there; or drain it, delete it and start "
                "again; or leave it to an operator with rabbitmq.declare_topology = false"
            ) from error
        await channel.close()


def _passing_on_to(queue: str) -> dict[str, Any]:
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


async def _look_for_exchange(channel: Channel, name: str) -> None:
    await channel.exchange_declare(name, passive=True)


async def _look_for_queue(channel: Channel, name: str) -> None:
    await channel.queue_declare(name, passive=True)


async def _declare_queue(channel: Channel, name: str, arguments: dict[str, Any]) -> None:
    await channel.queue_declare(name, durable=True, arguments=arguments)
