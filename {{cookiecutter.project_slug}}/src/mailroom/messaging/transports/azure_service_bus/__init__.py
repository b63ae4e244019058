"""Azure Service Bus: integration events over a topic, one queue for each service (contract R3, R4, I7).

`namespace` makes the client's senders and receivers, `publisher` and `receiver` are their two uses; `intake` is one of
the client's receivers and `holding` what is in hand; `topology` is what there must be in the namespace, `wire` how a
message looks there, `refusals` what its errors mean. For operators: `dead_letters` are those that were given up,
`provisioning` makes the topology, `emulator` writes it down for Microsoft's emulator.
"""

import asyncio
from collections.abc import AsyncIterator

from mailroom.backoff import backoff_seconds
from mailroom.checks import Check
from mailroom.envelope import Message
from mailroom.errors import ConfigurationError, LoginRefusedError, MailroomError, TransportUnavailableError
from mailroom.log import get_logger
from mailroom.messaging.attempts import Attempts
from mailroom.messaging.consumer import Consumer
from mailroom.messaging.examination import Examination
from mailroom.messaging.transports.azure_service_bus import wire
from mailroom.messaging.transports.azure_service_bus.dead_letters import ServiceBusDeadLetters
from mailroom.messaging.transports.azure_service_bus.namespace import Namespace
from mailroom.messaging.transports.azure_service_bus.provisioning import ServiceBusProvisioning, reach
from mailroom.messaging.transports.azure_service_bus.publisher import Publisher
from mailroom.messaging.transports.azure_service_bus.receiver import Receiver
from mailroom.messaging.transports.azure_service_bus.topology import Preparation, Topology
from mailroom.service import end, ended
from mailroom.settings import Settings

logger = get_logger(__name__)


class ServiceBusTransport:
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
        self._keeper: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Raises TransportUnavailableError if it is not there, ConfigurationError if it holds other things."""
        await self._publisher.open()

    async def start(self) -> None:
        """Connects, and stays connected; where the namespace is away, as soon as it is back. The relay waits meanwhile.

        Raises ConfigurationError if what is in the namespace cannot be used.
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
        await asyncio.gather(self._publisher.close(), self._aside.close())
        await self.namespace.close()

    def failure(self) -> str | None:
        return ended([self._keeper])

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

    async def _stay_connected(self) -> None:
        """Without it a service that has nothing to publish would not be ready again after the namespace was away."""
        bus, tries = self._settings.message_bus, 0
        while True:
            await self._publisher.lost.wait()
            tries += 1
            await asyncio.sleep(
                backoff_seconds(tries, base=bus.retry_min_interval_seconds, cap=bus.retry_max_interval_seconds)
            )
            try:
                await self.connect()
            except MailroomError as error:
                logger.debug("broker unavailable, trying again", reason=str(error))
            else:
                tries = 0
                self._tell_that_it_publishes()

    def _tell_that_it_publishes(self) -> None:
        logger.info("publishing", topic=self.topology.topic, namespace=self.namespace.host)


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
