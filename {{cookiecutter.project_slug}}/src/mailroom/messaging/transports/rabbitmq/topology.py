"""What a service needs on its broker, declared so that a redelivery cannot get lost (contract I7, F13).

    mailroom.events ──event name──► shop.events ──given up────────────────► shop.dead-letters
     (topic exchange)                ▲      └─put aside─► shop.redelivery.60s
                                     └──────after 60 s────────┘

Every queue is a durable quorum queue. What one passes on to the next is removed only once the next has it
(`at-least-once`, which needs `reject-publish`).
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiormq import Channel
from aiormq.exceptions import (
    ChannelAccessRefused,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from mailroom.errors import ConfigurationError, NotAllowedError
from mailroom.messaging.transports.rabbitmq.answers import answered, asking
from mailroom.messaging.transports.rabbitmq.link import Link, describe
from mailroom.settings import Settings

Ask = Callable[[Channel], Awaitable[None]]
"""A question or a declaration, on a channel of its own."""

MILLISECONDS = 1_000
UNLIMITED = 2**31 - 1
"""Looking at dead letters delivers them; that must not be counted against them."""

SETTINGS = {"x-delivery-limit": "rabbitmq.delivery_limit"}
"""Which setting says what an argument is."""
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<argument>[^']+)' .*: received (?P<asked>.*) but current is (?P<there>.*)"
)
_QUOTED = re.compile(r"'([^']*)'")


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

    @property
    def summary(self) -> str:
        if not self.bindings:
            return "no handler takes an integration event: nothing is consumed"
        return f"{len(self.queues)} queues; {self.queue} takes {', '.join(self.bindings)}"

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
        for name in self.queues:
            await self.declare_queue(link, name)
        for name in self.bindings:
            await self._ask(link, f"the binding of {name}", partial(self._bind, name=name))

    async def has_exchange(self, link: Link) -> bool:
        return await self._is_there(link, f"the exchange {self.exchange}", partial(_look_for_exchange, self.exchange))

    async def has_queue(self, link: Link, name: str) -> bool:
        return await self._is_there(link, f"the queue {name}", partial(_look_for_queue, name))

    async def declare_queue(self, link: Link, name: str) -> None:
        """Raises ConfigurationError if there is one of that name with other arguments."""
        await self._ask(link, f"the queue {name}", partial(_declare_queue, name, self.queues[name]))

    async def unbind(self, link: Link, name: str, arguments: Mapping[str, Any]) -> None:
        """Removes a binding of the service's queue; one that is not there is no error."""

        async def unbind(channel: Channel) -> None:
            await channel.queue_unbind(self.queue, self.exchange, name, arguments=dict(arguments))

        await self._ask(link, f"the binding of {name}", unbind)

    async def _bind(self, channel: Channel, name: str) -> None:
        await channel.queue_bind(self.queue, self.exchange, name)

    async def _is_there(self, link: Link, what: str, look: Ask) -> bool:
        is_there = True
        async with asking(link, what) as channel, answered(what):
            try:
                await look(channel)
            except ChannelNotFoundEntity:
                is_there = False
            except ChannelLockedResource:
                pass  # it is there, and somebody else has it to himself
        return is_there

    async def _ask(self, link: Link, what: str, declare: Ask) -> None:
        async with asking(link, what) as channel, answered(what):
            try:
                await declare(channel)
            except (ChannelAccessRefused, ChannelLockedResource) as error:
                raise NotAllowedError(
                    f"the broker does not let this user declare {what}: {describe(error)}",
                    remedy="grant it, or let an operator make it and set rabbitmq.declare_topology = false",
                ) from error
            except ChannelPreconditionFailed as error:
                raise ConfigurationError(
                    f"{what} is on the broker already, and {_difference(describe(error))}. Nothing was changed",
                    remedy="bring the settings back to what is there; or drain it, delete it and start again; or leave "
                    "it to an operator with rabbitmq.declare_topology = false",
                ) from error


def _difference(words: str) -> str:
    """From what the broker says: "inequivalent arg 'x' for queue 'q' in vhost '/': received A but current is B"."""
    found = _INEQUIVALENT.search(words)
    if found is None:
        return f"different from what the settings ask for: {words}"
    asked, there = _value(found["asked"]), _value(found["there"])
    setting = SETTINGS.get(found["argument"])
    by = f", by {setting}" if setting else ""
    return f"its {found['argument']} is {there}, where {asked} is asked for{by}"


def _value(words: str) -> str:
    """What is quoted in the broker's words, such as "the value '20' of type 'byte'"."""
    found = _QUOTED.search(words)
    return found[1] if found and found[1] else "none"


def _passing_on_to(queue: str) -> dict[str, Any]:
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }


async def _look_for_exchange(name: str, channel: Channel) -> None:
    await channel.exchange_declare(name, passive=True)


async def _look_for_queue(name: str, channel: Channel) -> None:
    await channel.queue_declare(name, passive=True)


async def _declare_queue(name: str, arguments: dict[str, Any], channel: Channel) -> None:
    await channel.queue_declare(name, durable=True, arguments=arguments)
