"""A queue that holds messages, their locks and how often they were delivered. It knows no protocol."""

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from uuid import UUID, uuid4

from .limits import Limits
from .messages import DESCRIPTION, REASON, Held, Message

Clock = Callable[[], float]


class LockLostError(Exception):
    """The lock is of nobody: it ran out, was settled, or never was."""


class NotFoundError(Exception):
    """There is no such message."""


class Duplicates:
    """The message ids that were seen within a window."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def has_seen(self, message_id: str | None, window: float | None, now: float) -> bool:
        """Whether this id came within the window of seconds; from now on it has."""
        if window is None or message_id is None:
            return False
        if now - self._seen.get(message_id, -window) < window:
            return True
        self._seen[message_id] = now
        return False


class Queue:
    """A queue, the messages of a subscription, or a dead-letter sub-queue, which has none itself."""

    def __init__(self, path: str, limits: Limits, clock: Clock, *, has_dead_letters: bool = True) -> None:
        self.path = path
        self.limits = limits
        self.returned = 0
        """How often a message came back: given back, or its lock had run out."""
        self.dead_letters = None
        if has_dead_letters:
            kept = Limits(lock=limits.lock, max_message_size=limits.max_message_size)
            self.dead_letters = Queue(f"{path}/$deadletterqueue", kept, clock, has_dead_letters=False)
        self._clock = clock
        self._numbers = count(1)
        self._held: dict[int, Held] = {}
        self._ready: list[int] = []
        self._locks: dict[UUID, Held] = {}
        self._timed: dict[int, Held] = {}
        self._duplicates = Duplicates()

    def __iter__(self) -> Iterator[Held]:
        return iter(sorted(self._held.values(), key=lambda held: held.number))

    def put(self, message: Message) -> int | None:
        """Returns the sequence number, or None if the message was swallowed as a duplicate."""
        now = self._clock()
        if self._duplicates.has_seen(message.message_id, self.limits.duplicate_window, now):
            return None
        number = next(self._numbers)
        scheduled_at = message.scheduled_at
        if scheduled_at is not None and scheduled_at > now:
            held = Held(message=message, number=number, enqueued_at=now, scheduled_at=scheduled_at)
            self._held[number] = self._timed[number] = held
            return number
        self._activate(Held(message=message, number=number, enqueued_at=now))
        return number

    def cancel(self, number: int) -> None:
        """Raises NotFoundError if no such message is scheduled."""
        held = self._held.get(number)
        if held is None or held.scheduled_at is None:
            raise NotFoundError(f"message {number} is not scheduled")
        del self._held[number]

    def has_ready(self) -> bool:
        self.pass_time()
        while self._ready and not self._is_ready(self._ready[0]):
            heapq.heappop(self._ready)
        return bool(self._ready)

    def receive(self) -> Held | None:
        """Locks the oldest message that is ready."""
        return self._locked(self._held[heapq.heappop(self._ready)]) if self.has_ready() else None

    def take(self) -> Held | None:
        """Removes the oldest message that is ready."""
        return self._held.pop(heapq.heappop(self._ready)) if self.has_ready() else None

    def receive_deferred(self, number: int, *, removes: bool = False) -> Held:
        """Raises NotFoundError if it is not deferred, or in somebody's hands."""
        self.pass_time()
        held = self._held.get(number)
        if held is None or not held.is_deferred or held.lock is not None:
            raise NotFoundError(f"message {number} is not deferred")
        return self._held.pop(number) if removes else self._locked(held)

    def peek(self, first: int, most: int) -> list[Held]:
        """Messages in any state, from a sequence number on."""
        self.pass_time()
        return [held for held in self if held.number >= first][:most]

    def complete(self, lock: UUID) -> None:
        """This, as everything that takes a lock, raises LockLostError."""
        del self._held[self._unlocked(lock).number]

    def abandon(self, lock: UUID) -> None:
        self._came_back(self._unlocked(lock))

    def release(self, lock: UUID) -> None:
        """Gives back what nobody has looked at: it does not count as a delivery."""
        self._make_ready(self._unlocked(lock))

    def defer(self, lock: UUID) -> None:
        self._unlocked(lock).is_deferred = True

    def dead_letter(self, lock: UUID, reason: str | None, description: str | None) -> None:
        self._give_up(self._unlocked(lock), reason, description)

    def renew(self, lock: UUID) -> float:
        """Returns until when it is locked."""
        self.pass_time()
        if lock not in self._locks:
            raise LockLostError(str(lock))
        held = self._locks[lock]
        held.locked_until = self._clock() + self.limits.lock
        return held.locked_until

    def lose_locks(self) -> int:
        """Every lock runs out at once. Returns how many there were."""
        lost = list(self._locks.values())
        for held in lost:
            held.locked_until = 0
        self.pass_time()
        return len(lost)

    def clear(self) -> None:
        """Forgets every message, and those in the sub-queue."""
        for kept in (self._held, self._ready, self._locks, self._timed):
            kept.clear()
        if self.dead_letters is not None:
            self.dead_letters.clear()

    def pass_time(self) -> None:
        """Does what time has brought: locks run out, scheduled messages appear, old ones expire."""
        now = self._clock()
        for lock, held in list(self._locks.items()):
            if held.locked_until <= now:
                self._came_back(self._unlocked(lock, is_checked=False))
        for number, held in list(self._timed.items()):
            if self._held.get(number) is not held:
                del self._timed[number]
            elif held.scheduled_at is not None and held.scheduled_at <= now:
                del self._held[number]
                self._activate(Held(message=held.message, number=next(self._numbers), enqueued_at=now))
            elif held.expires_at is not None and held.expires_at <= now and held.lock is None:
                self._expire(held)

    def counts(self) -> dict[str, int]:
        """As the service counts: what is locked or deferred is active. `returned` is how often one came back so far."""
        self.pass_time()
        scheduled = sum(held.scheduled_at is not None for held in self._held.values())
        return {
            "active": len(self._held) - scheduled,
            "locked": len(self._locks),
            "deferred": sum(held.is_deferred for held in self._held.values()),
            "scheduled": scheduled,
            "returned": self.returned,
            "dead_letters": len(self.dead_letters._held) if self.dead_letters else 0,
        }

    def size(self) -> int:
        return sum(held.message.size for held in self._held.values())

    def _activate(self, held: Held) -> None:
        lives = [each for each in (held.message.ttl_seconds, self.limits.time_to_live) if each is not None]
        if lives:
            held.expires_at = held.enqueued_at + min(lives)
            self._timed[held.number] = held
        self._held[held.number] = held
        self._make_ready(held)

    def _is_ready(self, number: int) -> bool:
        held = self._held.get(number)
        return held is not None and held.lock is None and not held.is_deferred

    def _make_ready(self, held: Held) -> None:
        if not held.is_deferred:
            heapq.heappush(self._ready, held.number)

    def _locked(self, held: Held) -> Held:
        held.lock = uuid4()
        held.locked_until = self._clock() + self.limits.lock
        self._locks[held.lock] = held
        return held

    def _unlocked(self, lock: UUID, *, is_checked: bool = True) -> Held:
        if is_checked:
            self.pass_time()
        held = self._locks.pop(lock, None)
        if held is None:
            raise LockLostError(str(lock))
        held.lock = None
        return held

    def _came_back(self, held: Held) -> None:
        held.delivery_count += 1
        self.returned += 1
        most = self.limits.max_delivery_count
        if most is None or held.delivery_count < most:
            self._make_ready(held)
            return
        text = f"Message could not be consumed after {most} delivery attempts."
        self._give_up(held, "MaxDeliveryCountExceeded", text)

    def _expire(self, held: Held) -> None:
        if self.limits.dead_letters_expired:
            self._give_up(held, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            del self._held[held.number]

    def _give_up(self, held: Held, reason: str | None, description: str | None) -> None:
        if self.dead_letters is None:  # one that is given up in the sub-queue stays there
            self._make_ready(held)
            return
        del self._held[held.number]
        said = {REASON: reason, DESCRIPTION: description}
        held.dead_letter = {name: text for name, text in said.items() if text is not None}
        held.expires_at, held.is_deferred = None, False
        self.dead_letters._held[held.number] = held
        self.dead_letters._make_ready(held)
