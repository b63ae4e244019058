"""Azure Service Bus: integration events over a topic, one queue for each service (contract R3, R4, I7).

`namespace` makes the client's senders and receivers, `publisher` and `receiver` are their two uses; `intake` is one of
the client's receivers and `holding` what is in hand; `topology` is what there must be in the namespace, `wire` how a
message looks there, `refusals` what its errors mean. For operators: `dead_letters` are those that were given up,
`provisioning` makes the topology, `emulator` writes it down for Microsoft's emulator.
"""

import asyncio
from collections.abc import AsyncIterator

from mailroom.checks import Check
from mailroom.envelope import Message
from mailroom.errors import ConfigurationError
from mailroom.messaging.attempts import Attempts
from mailroom.messaging.connecting import Connecting
from mailroom.messaging.consumer import Consumer
from mailroom.messaging.examination import Examination
from mailroom.messaging.transports.azure_service_bus import wire
from mailroom.messaging.transports.azure_service_bus.dead_letters import ServiceBusDeadLetters
from mailroom.messaging.transports.azure_service_bus.namespace import Namespace
from mailroom.messaging.transports.azure_service_bus.provisioning import ServiceBusProvisioning, reach
from mailroom.messaging.transports.azure_service_bus.publisher import Publisher
from mailroom.messaging.transports.azure_service_bus.receiver import Receiver
from mailroom.messaging.transports.azure_service_bus.topology import Preparation, Topology
from mailroom.settings import Settings


class ServiceBusTransport(Connecting):
    """Publishes to the topic, and owns the receiver of the service's queue."""

    name = "azure_service_bus"

    def __init__(self, settings: Settings, consumer: Consumer) -> None:
        bus = settings.service_bus
        self.topology = Topology.of(settings, consumer.subscriptions)
        self.namespace = Namespace(bus)
        preparation = Preparation(self.namespace, self.topology, declares=bus.declare_topology)
        self._publisher = Publisher(
            self.namespace,
            self.topology.topic,
            is_topic=True,
            confirm_timeout_seconds=bus.confirm_timeout_seconds,
            preparation=preparation,
        )
        aside = Publisher(
            self.namespace,
            self.topology.queue,
            is_topic=False,
            confirm_timeout_seconds=bus.confirm_timeout_seconds,
            preparation=preparation,
        )
        self.receiver = Receiver(
            settings, self.topology, self.namespace, preparation, aside, Attempts(consumer, settings.message_bus)
        )
        self.dead_letters = ServiceBusDeadLetters(self.topology, self.namespace, aside)
        self.provisioning = ServiceBusProvisioning(self.topology, self.namespace, compares=bus.declare_topology)
        self._aside = aside
        self._settings = settings
        publishes_to = {"topic": self.topology.topic, "namespace": self.namespace.host}
        super().__init__(settings.message_bus, self._publisher.lost, publishes_to)

    async def connect(self) -> None:
        """Raises TransportUnavailableError if it is not there, ConfigurationError if it holds other things."""
        await self._publisher.open()

    async def _disconnect(self) -> None:
        await asyncio.gather(self._publisher.close(), self._aside.close())
        await self.namespace.close()

    def examine(self, command: str) -> AsyncIterator[Check]:
        return Examination(
            where=self._where,
            provisioning=self.provisioning,
            dead_letters=self.dead_letters,
            summary=self.topology.summary,
            binding="rule",
            declares=self._settings.service_bus.declare_topology,
            has_to_answer=self._settings.service_bus.declare_topology,
        ).checks(command)

    def disconnection(self) -> str | None:
        return self._publisher.problem

    async def publish(self, message: Message, attempt: int) -> None:
        await self._publisher.send(wire.outgoing(message, limit=self._settings.message_bus.max_payload_bytes))

    async def _where(self) -> str:
        await reach(self.namespace, self.topology)
        return self.namespace.host


def create(settings: Settings, consumer: Consumer) -> ServiceBusTransport:
    """For `message_bus.provider = "azure_service_bus"`. Raises ConfigurationError if settings lack or clash."""
    given = settings.service_bus
    problems = []
    if given.connection_string is None and given.namespace is None:
        problems.append(
            "service_bus.connection_string, or service_bus.namespace, for example shop.servicebus.windows.net"
        )
    if settings.message_bus.endpoint_prefix is None:
        problems.append("message_bus.endpoint_prefix, the name with which this service's queue begins, such as shop")
    if problems:
        raise ConfigurationError(f"message_bus.provider = azure_service_bus needs {'; and '.join(problems)}")
    if given.connection_string is not None and given.namespace is not None:
        raise ConfigurationError(
            "service_bus.connection_string and service_bus.namespace are both set, and only one of them can say where "
            "to connect and as whom; leave one out"
        )
    return ServiceBusTransport(settings, consumer)
