"""What happens to two producers, two relays, two consumers and their broker while they work, by a plan.

The plan follows the work, not the clock: each act is due once so many events are handled, so that a slow machine is
not crowded and a quick one is not spared.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import NamedTuple

import broker_deaths
from broker_deaths import Arm
from crew import Worker
from evidence import Evidence
from own_proxy import OwnProxy
from own_rabbitmq import OwnRabbitMQ
from place import Death, Place, Role
from tap import Tap

from mailroom.persistence.tables import PENDING

SHOP, WAREHOUSE = "shop", "warehouse"
QUEUES = [f"{WAREHOUSE}.{name}" for name in ("events", "dead-letters", "redelivery.0.5s")]
TURNS = ("relay", "consumer", "producer", "relay", "consumer")
"""Whose turn it is to be killed."""
STALLED_SECONDS = 30
"""Nothing at all has happened for so long: that is no slow machine any more."""
END_SECONDS = 30
LOOK_SECONDS = 0.1
TELL_SECONDS = 1


class Progress(NamedTuple):
    sold: int
    to_publish: int
    handled: int
    to_handle_here: int
    """What the warehouse's handlers have raised in turn."""

    @property
    def published(self) -> int:
        return self.sold - self.to_publish


class Act(NamedTuple):
    due: float
    """Once so many events are sold, published or handled: whatever is the work of the role."""
    what: str
    role: str = "consumer"

    def is_due(self, progress: Progress) -> bool:
        done = {"producer": progress.sold, "relay": progress.published, "consumer": progress.handled}
        return done[self.role] >= self.due


def plan(events: int, kills: int, chance: Random) -> list[Act]:
    """Acts spread over the events, a kill of each named point among the first of its role."""
    cuts, restarts = max(6, kills // 5), 3 + kills // 100
    acts = [Act(events * (n + 1) / (kills + 1), "kill", role) for n, role in zip(range(kills), cycle(TURNS))]
    for n in range(cuts):
        acts.append(Act(events * (n + chance.random()) / (cuts + 1), ("cut", "swallow and cut")[n % 2]))
    for n in range(restarts):
        acts.append(Act(events * (n + 0.5) / restarts, ("restart", "crash")[n % 2]))
    import os
    only = os.environ.get("ONLY")
    if only is not None:
        acts = [a for a in acts if a.what in only.split(",")]
    return sorted(acts)


def deaths(points: list[str], chance: Random) -> Iterator[Death]:
    """Round by round each named point and a third as many random moments. The first is the one that may take longest:
    a relay takes over only what another one has left."""
    first = [point for point in points if point == broker_deaths.TAKE_OVER]
    while True:
        a_round: list[Death] = [*points, *[None] * (len(points) // 3 or 1)]
        chance.shuffle(a_round)
        for point in first:
            a_round.remove(point)
        yield from [*first, *a_round]


@dataclass
class Chaos:
    """Two of each role, at work from `start` to `end`."""

    shop: Evidence
    warehouse: Evidence
    node: OwnRabbitMQ
    proxy: OwnProxy
    tap: Tap
    events: int
    chance: Random

    def start(self, workers: list[Worker], skus: list[str]) -> None:
        consuming = {"broker": self.proxy.url, "service": WAREHOUSE}
        workers[0].run("set_up_the_broker", self.warehouse, **consuming)
        self.tap.open()
        relaying = {"broker": self.proxy.url, "service": SHOP}
        selling = relaying | {"skus": skus, "count": self.events // len(skus)}
        roles = [
            Role("consumer", "consume_from_the_broker", self.warehouse, consuming, self._deaths(broker_deaths.CONSUMER)),
            Role("relay", "publish_to_the_broker", self.shop, relaying, self._deaths(broker_deaths.RELAY)),
            Role("producer", "sell_over_a_broker", self.shop, selling, self._deaths(broker_deaths.PRODUCER)),
        ]
        self.places = [
            Place(role, worker, Random(self.chance.random()))
            for role, worker in zip([*roles, *roles], workers, strict=True)
        ]

    def _deaths(self, points: dict[str, Arm]) -> Iterator[Death]:
        return deaths(list(points), Random(self.chance.random()))

    def rage(self, acts: list[Act]) -> None:
        """Until all is done that was planned."""
        for progress in self._looks(lambda: f"{len(acts)} acts are left, the next is {acts[0]}"):
            acts[:] = [act for act in acts if not act.is_due(progress) or not self._do(act)]
            if not acts:
                break
        for place in self.places:
            place.finish_off()

    def calm_down(self) -> None:
        """Waits until everything is handled and nothing is pending anywhere; then everybody is asked to end."""
        for progress in self._looks(lambda: f"in the queues: {self.queues}"):
            if progress == Progress(self.events, 0, self.events, 0) and not any(self.queues.values()):
                break
        for place in self.places:
            place.ask_to_end()
        for place in self.places:
            place.wait(END_SECONDS)

    @property
    def died(self) -> dict[str, Counter[str]]:
        """How often each role was killed where."""
        died: dict[str, Counter[str]] = {}
        for place in self.places:
            died.setdefault(place.role.name, Counter()).update(place.died)
        return died

    @property
    def queues(self) -> dict[str, int]:
        return {name: self.tap.count(name) for name in QUEUES}

    def _do(self, act: Act) -> bool:
        """Whether it could be done."""
        match act.what:
            case "kill":
                return self._kill(act.role)
            case "cut":
                self.proxy.cut()
            case "swallow and cut":
                self.proxy.swallow_and_cut()
            case "restart":
                self.node.stop()
                self._kill("relay")
                self.node.start()
            case "crash":
                self.node.kill()
                self._kill("consumer")
                self.node.start()
        return True

    def _kill(self, role: str) -> bool:
        places = [place for place in self.places if place.role.name == role]
        self.chance.shuffle(places)
        return any(place.kill() for place in places)

    def _looks(self, missing: Callable[[], str]) -> Iterator[Progress]:
        """How far everybody is, again and again, with a line now and then. Fails once nothing changes any more."""
        last, changed, told = None, time.monotonic(), time.monotonic()
        while True:
            for place in self.places:
                if place.failure is not None:
                    raise place.failure
            progress, now = self._progress(), time.monotonic()
            if progress != last:
                last, changed = progress, now
            if now - told > TELL_SECONDS:
                told = now
                print(f"{time.strftime('%X')} {progress} of {self.events}; killed {self._kills} times", flush=True)
            if now - changed > STALLED_SECONDS:
                for place in self.places:
                    place.show_stacks()
                time.sleep(1)
                raise AssertionError(f"nothing happens any more: {progress} of {self.events}; {missing()}; {self.died}")
            yield progress
            time.sleep(LOOK_SECONDS)

    @property
    def _kills(self) -> int:
        return sum(counter.total() for counter in self.died.values())

    def _progress(self) -> Progress:
        pending = "SELECT (SELECT count(*) FROM {table}), (SELECT count(*) FROM outbox_messages WHERE {pending})"
        (shop,) = self.shop.ask(pending.format(table="orders", pending=PENDING))
        (warehouse,) = self.warehouse.ask(pending.format(table="reservations", pending=PENDING))
        return Progress(*shop, *warehouse)
