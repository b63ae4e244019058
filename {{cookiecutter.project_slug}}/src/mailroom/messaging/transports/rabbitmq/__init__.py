"""RabbitMQ: integration events over a topic exchange, one queue for each service (contract R3, R4, I7).

`link` is a connection, `publisher` and `receiver` are its two uses, `topology` is what there must be on the broker,
`wire` how a message looks there. For operators: `dead_letters` are those that were given up, `provisioning` makes the
topology, `management` tells what AMQP does not; `answers` is how all of them wait.
"""

from collections.abc import AsyncIterator

from mailroom import metrics
from mailroom.checks import Check
from mailroom.envelope import Message
from mailroom.errors import ConfigurationError, UnroutableError
from mailroom.log import get_logger
from mailroom.messaging.attempts import Attempts
from mailroom.messaging.connecting import Connecting
from mailroom.messaging.consumer import Consumer
from mailroom.messaging.examination import Examination
from mailroom.messaging.headers import body_of
from mailroom.messaging.transports.rabbitmq import wire
from mailroom.messaging.transports.rabbitmq.answers import asking
from mailroom.messaging.transports.rabbitmq.dead_letters import RabbitMQDeadLetters
from mailroom.messaging.transports.rabbitmq.link import Link
from mailroom.messaging.transports.rabbitmq.provisioning import RabbitMQProvisioning
from mailroom.messaging.transports.rabbitmq.publisher import Publisher
from mailroom.messaging.transports.rabbitmq.receiver import Receiver
from mailroom.messaging.transports.rabbitmq.topology import Topology
from mailroom.settings import Settings

logger = get_logger(__name__)


class RabbitMQTransport(Connecting):
    """Publishes, and owns the receiver. Two connections: publishing and consuming do not hold each other back."""

    name = "rabbitmq"

    def __init__(self, settings: Settings, consumer: Consumer) -> None:
        self.topology = Topology.of(settings, consumer.subscriptions)
        self.link = Link(settings.rabbitmq, f"{settings.message_bus.endpoint_prefix} publisher")
        self._publisher = Publisher(
            self.link,
            confirm_timeout_seconds=settings.rabbitmq.confirm_timeout_seconds,
            prepare=self._prepare,
        )
        self.receiver = Receiver(
            settings,
            self.topology,
            Link(settings.rabbitmq, f"{settings.message_bus.endpoint_prefix} consumer"),
            self._publisher,
            Attempts(consumer, settings.message_bus),
        )
        self.dead_letters = RabbitMQDeadLetters(self.topology, self.link, self._publisher)
        self.provisioning = RabbitMQProvisioning(settings.rabbitmq, self.topology, self.link)
        self._settings = settings
        publishes_to = {"exchange": self.topology.exchange, "broker": settings.rabbitmq.safe_url}
        super().__init__(settings.message_bus, self.link.lost, publishes_to)
        self._unrouted: set[str] = set()

    async def connect(self) -> None:
        """Raises TransportUnavailableError if the broker is not there, ConfigurationError if it holds other things."""
        await self._publisher.open()

    async def _disconnect(self) -> None:
        await self._publisher.close()

    def examine(self, command: str) -> AsyncIterator[Check]:
        settings = self._settings.rabbitmq
        return Examination(
            where=self._where,
            provisioning=self.provisioning,
            dead_letters=self.dead_letters,
            summary=self.topology.summary,
            binding="binding",
            declares=settings.declare_topology,
            has_to_answer=settings.management_url is not None,  # it is optional, until somebody asks for it
        ).checks(command)

    def disconnection(self) -> str | None:
        return self.link.problem

    async def publish(self, message: Message, attempt: int) -> None:
        body = body_of(message, limit=self._settings.message_bus.max_payload_bytes)
        properties = wire.properties_of(message)
        if not await self._publisher.send(self.topology.exchange, message.event_type, body, properties):
            self._note_unrouted(message)

    async def _where(self) -> str:
        async with asking(self.link, "itself") as channel:
            version = channel.connection.server_properties.get("version", "of an unknown version")
        text = version.decode() if isinstance(version, bytes) else version
        return f"{self._settings.rabbitmq.safe_url}, RabbitMQ {text}"

    async def _prepare(self) -> None:
        """With this service's own queue: what it publishes for itself before that is bound would be dropped."""
        if self._settings.rabbitmq.declare_topology:
            await self.topology.declare(self.link)

    def _note_unrouted(self, message: Message) -> None:
        """No queue is bound: nobody wants the event, or its consumers were never started (F1)."""
        metrics.unrouted(message.event_type)
        if self._settings.rabbitmq.require_route:
            raise UnroutableError(
                f"no queue is bound to {message.event_type} on the exchange {self.topology.exchange}, and "
                "rabbitmq.require_route = true asks for one; start a service that handles it once, or bind a queue"
            )
        if message.event_type not in self._unrouted:
            self._unrouted.add(message.event_type)
            logger.warning(
                "nobody takes this event",
                event_type=message.event_type,
                exchange=self.topology.exchange,
                consequence="the broker dropped it; told once for each event name, counted each time",
            )


def create(settings: Settings, consumer: Consumer) -> RabbitMQTransport:
    """For `message_bus.provider = "rabbitmq"`. Raises ConfigurationError if settings are missing that it needs."""
    missing = []
    if settings.rabbitmq.url is None:
        missing.append("rabbitmq.url, the broker, for example amqp://guest:guest@127.0.0.1:5672/")
    if settings.message_bus.endpoint_prefix is None:
        missing.append("message_bus.endpoint_prefix, the name with which this service's queues begin, such as shop")
    if missing:
        raise ConfigurationError(f"message_bus.provider = rabbitmq needs {'; and '.join(missing)}")
    return RabbitMQTransport(settings, consumer)
