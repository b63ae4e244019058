"""What a service needs in the namespace, so that a redelivery reaches it alone and cannot get lost (contract I7, F13).

    mailroom.events ──a rule for each event──► shop ──forwards──► shop.events ──given up──► shop.events/$DeadLetterQueue
        (topic)                            (subscription)          ▲ (queue) │
                                                                   └─ a copy ┘ due after the interval

The queue does not detect duplicates: it would swallow a copy that has the id of the message.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import CorrelationRuleFilter, RuleProperties

from mailroom.errors import ConfigurationError
from mailroom.messaging.transports.azure_service_bus.namespace import Namespace
from mailroom.settings import Settings

DEFAULT_RULE = "$Default"
"""A new subscription has it, and it takes everything."""
RULE_LENGTH = 50
"""Of a rule's name, in characters."""
EMULATOR_DELIVERIES = 10
EMULATOR_TIME_TO_LIVE = timedelta(hours=1)
"""More than these an emulator does not take."""
_ODD = re.compile(r"[^A-Za-z0-9._-]")

Properties = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Names and properties; derived from the settings and from what the service handles."""

    topic: str
    queue: str
    subscription: str
    events: tuple[str, ...]
    """Those that the queue wants, by name."""
    lock_seconds: int
    delivery_limit: int
    time_to_live: timedelta | None
    """None is as long as the service keeps messages by itself: for ever."""

    @classmethod
    def of(cls, settings: Settings, wanted: Iterable[str]) -> "Topology":
        bus, prefix, events = settings.service_bus, settings.message_bus.endpoint_prefix or "", tuple(wanted)
        queue = f"{prefix}.events"
        if queue.lower() == bus.topic.lower():
            raise ConfigurationError(
                f"service_bus.topic is {bus.topic}, and so is the service's queue called, by "
                f"message_bus.endpoint_prefix = {prefix}: a namespace has one thing of a name; call the topic "
                "otherwise, in every service"
            )
        if len({rule_of(event).lower() for event in events}) < len(events):
            raise ConfigurationError(
                f"of the handled events {', '.join(sorted(events))} two have the same last {RULE_LENGTH} characters, "
                "or differ in upper and lower case alone, and a rule of Service Bus is known by no more; give one of "
                "them another name"
            )
        return cls(
            topic=bus.topic,
            queue=queue,
            subscription=prefix,
            events=events,
            lock_seconds=bus.lock_seconds,
            delivery_limit=min(bus.delivery_limit, EMULATOR_DELIVERIES) if bus.is_emulator else bus.delivery_limit,
            time_to_live=EMULATOR_TIME_TO_LIVE if bus.is_emulator else None,
        )

    @property
    def dead_letters(self) -> str:
        return f"{self.queue}/$DeadLetterQueue"

    @property
    def rules(self) -> dict[str, str]:
        """The event name of each rule, by the rule's name."""
        return {rule_of(event): event for event in sorted(self.events)}

    @property
    def summary(self) -> str:
        if not self.events:
            return "no handler takes an integration event: nothing is consumed"
        return f"{self.queue} takes {', '.join(self.events)} from {self.topic}"

    @property
    def _kept(self) -> Properties:
        return {} if self.time_to_live is None else {"default_message_time_to_live": self.time_to_live}

    @property
    def queue_properties(self) -> Properties:
        return {
            "lock_duration": timedelta(seconds=self.lock_seconds),
            "max_delivery_count": self.delivery_limit,
            **self.needed_properties,
        }

    @property
    def needed_properties(self) -> Properties:
        """Without which redeliveries would be lost, or nothing consumed; the rest is up to whoever owns the queue."""
        return {"requires_duplicate_detection": False, "requires_session": False}

    async def declare(self, administration: ServiceBusAdministrationClient) -> None:
        """Makes what is missing, and changes nothing. Raises ConfigurationError if something is there and different."""
        problem = await self.problem_of_topic(administration)
        if problem:
            raise different(f"the topic {self.topic}", problem)
        if problem is not None:
            with suppress(ResourceExistsError):  # another instance was faster
                await administration.create_topic(self.topic, **self._kept)
        if not self.events:
            return
        await self.declare_queue(administration)
        await self.declare_subscription(administration)

    async def declare_queue(self, administration: ServiceBusAdministrationClient) -> None:
        problem = await self.problem_of_queue(administration, self.queue_properties)
        if problem is None:
            return
        if problem:
            raise different(f"the queue {self.queue}", problem)
        try:
            await administration.create_queue(self.queue, **self.queue_properties, **self._kept)
        except ResourceExistsError:
            await self.declare_queue(administration)

    async def declare_subscription(self, administration: ServiceBusAdministrationClient) -> None:
        problem = await self.problem_of_subscription(administration)
        if problem:
            raise different(f"the subscription {self.subscription}", problem)
        if problem is not None:
            with suppress(ResourceExistsError):
                await administration.create_subscription(
                    self.topic,
                    self.subscription,
                    forward_to=self.queue,
                    max_delivery_count=self.delivery_limit,
                    **self._kept,
                )
        found = await self.rules_there(administration)
        for name, event in self.rules.items():
            if event in found.values():
                continue
            taken = taken_by(name, found)
            if taken is not None:
                raise different(f"the rule {name}", f"it takes {taken}, and not {event}")
            await self._make_rule(administration, name, event)
        if DEFAULT_RULE in found:
            await self.remove_rule(administration, DEFAULT_RULE)

    async def problem_of_topic(self, administration: ServiceBusAdministrationClient) -> str | None:
        """How the topic differs; empty if it is not there, None if all is well."""
        try:
            await administration.get_topic(self.topic)
        except ResourceNotFoundError:
            return ""
        except AttributeError:  # so the client reads anything else of that name
            return "it is no topic"
        return None

    async def problem_of_queue(
        self, administration: ServiceBusAdministrationClient, properties: Properties
    ) -> str | None:
        """As `problem_of_topic`, for these properties."""
        try:
            found = await administration.get_queue(self.queue)
        except ResourceNotFoundError:
            return ""
        except AttributeError:
            return "it is no queue"
        differing = [
            f"its {name} is {said(getattr(found, name))}, where {said(value)} is asked for{_BY_SETTING.get(name, '')}"
            for name, value in properties.items()
            if getattr(found, name) != value
        ]
        return "; ".join(differing) or None

    async def problem_of_subscription(self, administration: ServiceBusAdministrationClient) -> str | None:
        """As `problem_of_topic`."""
        try:
            found = await administration.get_subscription(self.topic, self.subscription)
        except ResourceNotFoundError:
            return ""
        forwards_to = (found.forward_to or "").rpartition("/")[2]
        if forwards_to.lower() == self.queue.lower():
            return None
        return f"it forwards to {forwards_to or 'no queue'}, where {self.queue} is asked for"

    async def rules_there(self, administration: ServiceBusAdministrationClient) -> dict[str, str]:
        """The event name of each rule of the subscription; empty for a rule that is none of ours. None are there if
        there is no subscription."""
        try:
            return {
                rule.name: _event_of(rule) async for rule in administration.list_rules(self.topic, self.subscription)
            }
        except ResourceNotFoundError:
            return {}

    async def remove_rule(self, administration: ServiceBusAdministrationClient, name: str) -> None:
        """One that is not there is no error."""
        with suppress(ResourceNotFoundError):
            await administration.delete_rule(self.topic, self.subscription, name)

    async def _make_rule(self, administration: ServiceBusAdministrationClient, name: str, event: str) -> None:
        with suppress(ResourceExistsError):
            await administration.create_rule(
                self.topic, self.subscription, name, filter=CorrelationRuleFilter(label=event)
            )


class Preparation:
    """Makes what is missing before it is used, once for all who use it; and again once something was not there."""

    def __init__(self, namespace: Namespace, topology: Topology, *, declares: bool) -> None:
        self._namespace = namespace
        self._topology = topology
        self._is_done = not declares
        self._declares = declares
        self._declaring = asyncio.Lock()

    async def __call__(self) -> None:
        """Raises ConfigurationError if something is there and different, or if this identity may not make it."""
        async with self._declaring:
            if not self._is_done:
                async with self._namespace.administration() as administration:
                    await self._topology.declare(administration)
                self._is_done = True

    def forget(self) -> None:
        """Somebody removed something."""
        self._is_done = not self._declares


def different(what: str, how: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} is in the namespace already, and {how}. Nothing was changed",
        remedy="bring the settings back to what is there; or change it there, or drain and delete it and start again; "
        "or leave it to an operator with service_bus.declare_topology = false",
    )


_BY_SETTING = {
    "lock_duration": ", by service_bus.lock_seconds",
    "max_delivery_count": ", by service_bus.delivery_limit",
    "requires_duplicate_detection": ": it would swallow redeliveries",
}


def said(value: Any) -> str:
    return f"{value.total_seconds():g} s" if isinstance(value, timedelta) else str(value)


def _event_of(rule: RuleProperties) -> str:
    if not isinstance(rule.filter, CorrelationRuleFilter) or rule.filter.label is None:
        return ""
    return str(rule.filter.label)


def rule_of(event: str) -> str:
    """The name of its rule: the end of a name that is too long, where names differ."""
    return _ODD.sub("-", event)[-RULE_LENGTH:].lstrip("._-")


def taken_by(name: str, rules: Mapping[str, str]) -> str | None:
    """What the rule of that name takes; None if there is none. The service does not tell upper from lower case."""
    events = {one.lower(): event for one, event in rules.items()}
    return None if name.lower() not in events else events[name.lower()] or "something else"
