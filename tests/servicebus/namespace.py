"""The entities by their paths, and the way of a message between them."""

import time
from collections.abc import Iterator
from itertools import count

from .limits import QUEUE, SUBSCRIPTION, TOPIC, limits_of
from .messages import Held, Message
from .queues import Clock, Duplicates, NotFoundError, Queue
from .rules import Always, Filter

DEAD_LETTERS = "/$deadletterqueue"
HOPS = 4


class Described:
    """What every entity has: a name as it was given, and its description. Raises ValueError for one that cannot be."""

    DEFAULTS: dict[str, str]

    def __init__(self, name: str, description: dict[str, str]) -> None:
        self.name = name
        self.created_at = self.updated_at = time.time()
        self.describe(description)

    def describe(self, description: dict[str, str]) -> None:
        described = {**self.DEFAULTS, **description}
        self.limits = limits_of(described)
        self.description = described
        self.updated_at = time.time()


class QueueEntity(Described):
    DEFAULTS = QUEUE

    def __init__(self, path: str, name: str, description: dict[str, str], clock: Clock) -> None:
        super().__init__(name, description)
        self.queue = Queue(path, self.limits, clock)

    def describe(self, description: dict[str, str]) -> None:
        super().describe(description)
        if hasattr(self, "queue"):
            self.queue.limits = self.limits


class Subscription(QueueEntity):
    DEFAULTS = SUBSCRIPTION

    def __init__(self, path: str, name: str, description: dict[str, str], clock: Clock) -> None:
        super().__init__(path, name, description, clock)
        self.rules: dict[str, tuple[Filter, str]] = {"$Default": (Always(), "")}
        """By name: what it lets through, and the description that it came with."""

    def wants(self, message: Message) -> bool:
        return any(rule.wants(message) for rule, _ in self.rules.values())


class Topic(Described):
    DEFAULTS = TOPIC

    def __init__(self, name: str, description: dict[str, str], clock: Clock) -> None:
        super().__init__(name, description)
        self.subscriptions: dict[str, Subscription] = {}
        self.scheduled: dict[int, Held] = {}
        self._clock = clock
        self._numbers = count(1)
        self._duplicates = Duplicates()

    def take(self, message: Message) -> int | None:
        """Returns the sequence number, or None if the message was swallowed as a duplicate."""
        now = self._clock()
        if self._duplicates.has_seen(message.message_id, self.limits.duplicate_window, now):
            return None
        return next(self._numbers)

    def schedule(self, number: int, message: Message) -> None:
        now = self._clock()
        self.scheduled[number] = Held(
            message=message, number=number, enqueued_at=now, scheduled_at=message.scheduled_at
        )

    def due(self) -> list[Message]:
        """Removes what was scheduled for now or before."""
        now = self._clock()
        numbers = [number for number, held in self.scheduled.items() if (held.scheduled_at or 0) <= now]
        return [self.scheduled.pop(number).message for number in numbers]


class Namespace:
    """Paths are compared in lower case."""

    def __init__(self, clock: Clock = time.time) -> None:
        self.queues: dict[str, QueueEntity] = {}
        self.topics: dict[str, Topic] = {}
        self._clock = clock

    def clear(self) -> None:
        """Forgets every entity."""
        self.queues.clear()
        self.topics.clear()

    def create_queue(self, name: str, description: dict[str, str]) -> None:
        self.queues[name.lower()] = QueueEntity(name.lower(), name, description, self._clock)

    def create_topic(self, name: str, description: dict[str, str]) -> None:
        self.topics[name.lower()] = Topic(name, description, self._clock)

    def create_subscription(self, topic: str, name: str, description: dict[str, str]) -> None:
        path = f"{topic}/subscriptions/{name}".lower()
        made = Subscription(path, name, description, self._clock)
        self.topics[topic.lower()].subscriptions[name.lower()] = made

    def source(self, path: str) -> Queue | None:
        """The queue, subscription or sub-queue that is received from at this path."""
        path = path.strip("/").lower()
        bare = path.removesuffix(DEAD_LETTERS)
        entity = self._entity(bare)
        if entity is None or isinstance(entity, Topic):
            return None
        return entity.queue if bare == path else entity.queue.dead_letters

    def target(self, path: str) -> QueueEntity | Topic | None:
        """What is sent to at this path."""
        path = path.strip("/").lower()
        return self.queues.get(path) or self.topics.get(path)

    def sources(self) -> Iterator[Queue]:
        for entity in self._entities():
            yield entity.queue
            if entity.queue.dead_letters is not None:
                yield entity.queue.dead_letters

    def send(self, path: str, message: Message, hops: int = 0) -> int:
        """Takes a message. Returns its sequence number, or 0 if it was swallowed as a duplicate."""
        target = self.target(path)
        if target is None:
            raise NotFoundError(path)
        if isinstance(target, QueueEntity):
            return self._put(target, message, hops) or 0
        number = target.take(message)
        if number is None:
            return 0
        if message.scheduled_at is not None and message.scheduled_at > self._clock():
            target.schedule(number, message)
        else:
            self._fan_out(target, message, hops)
        return number

    def cancel(self, path: str, number: int) -> None:
        """Raises NotFoundError if no such message is scheduled."""
        target = self.target(path)
        if isinstance(target, QueueEntity):
            target.queue.cancel(number)
        elif target is None or target.scheduled.pop(number, None) is None:
            raise NotFoundError(f"message {number} is not scheduled")

    def pass_time(self) -> None:
        for topic in self.topics.values():
            for message in topic.due():
                self._fan_out(topic, message, 0)
        for queue in self.sources():
            queue.pass_time()

    def lose_locks(self, path: str | None = None) -> int:
        """Raises NotFoundError for a path that is not received from."""
        if path is None:
            return sum(queue.lose_locks() for queue in self.sources())
        queue = self.source(path)
        if queue is None:
            raise NotFoundError(path)
        return queue.lose_locks()

    def _fan_out(self, topic: Topic, message: Message, hops: int) -> None:
        for subscription in topic.subscriptions.values():
            if subscription.wants(message):
                self._put(subscription, message, hops)

    def _put(self, entity: QueueEntity, message: Message, hops: int) -> int | None:
        forward_to = entity.limits.forward_to
        if forward_to and self.target(forward_to) and hops < HOPS:
            return self.send(forward_to, message, hops + 1)
        return entity.queue.put(message)

    def _entity(self, path: str) -> QueueEntity | Topic | None:
        topic, _, subscription = path.partition("/subscriptions/")
        if subscription:
            return self.topics[topic].subscriptions.get(subscription) if topic in self.topics else None
        return self.target(path)

    def _entities(self) -> Iterator[QueueEntity]:
        yield from self.queues.values()
        for topic in self.topics.values():
            yield from topic.subscriptions.values()
