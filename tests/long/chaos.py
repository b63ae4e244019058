"""Two producers, two relays and two consumers at work, and what happens to them and to their broker meanwhile.

The plan follows the work, not the clock: each act is due once so much is done, so that a slow machine is not crowded
and a quick one is not spared.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from arrivals import first_arrivals, numbers_by_sku
from broker_deaths import NAMED, TAKE_OVER, Points
from broker_jobs import KEYED, RECEIPT_EVERY
from bus import SHOP, WAREHOUSE, Bus
from chaos_plan import Act, Progress
from crew import Worker
from evidence import Evidence
from place import Death, Place, Role

from mailroom.persistence.tables import PENDING

KEYED_SKUS = [f"{KEYED}-{number}" for number in range(10)]
SKUS = KEYED_SKUS + [f"loose-{number}" for number in range(10)]
STALLED_SECONDS = 90
"""Nothing at all has changed for so long: no machine is that slow."""
END_SECONDS = 60
LOOK_SECONDS = 0.3
TELL_SECONDS = 15


def deaths(points: Points, chance: Random) -> Iterator[Death]:
    """Round by round each named point, and a third as many random moments.

    The take-over comes first: it needs another relay that died before.
    """
    first = [point for point in points if point == TAKE_OVER]
    others: list[Death] = [point for point in points if point != TAKE_OVER]
    others += [None] * (len(points) // 3 or 1)
    while True:
        chance.shuffle(others)
        yield from [*first, *others]


@dataclass
class Chaos:
    """From `start` over `rage` to `calm_down`; in any case `abandon`."""

    shop: Evidence
    warehouse: Evidence
    bus: Bus
    events: int
    """As many as there are articles, or several times that."""
    chance: Random
    places: list[Place] = field(default_factory=list)

    def start(self, workers: list[Worker]) -> None:
        there = {"provider": self.bus.provider, "broker": self.bus.sections}
        consuming, relaying = there | {"service": WAREHOUSE}, there | {"service": SHOP}
        selling = relaying | {"skus": SKUS, "count": self.events // len(SKUS)}
        workers[0].run("set_up_the_broker", self.warehouse, **consuming)
        self.bus.open_tap()
        roles = [
            Role("consumer", "consume_from_the_broker", self.warehouse, consuming, self._deaths("consumer")),
            Role("relay", "publish_to_the_broker", self.shop, relaying, self._deaths("relay")),
            Role("producer", "sell_over_a_broker", self.shop, selling, self._deaths("producer")),
        ]
        for role, worker in zip([*roles, *roles], workers, strict=True):
            self.places.append(Place(role, worker, Random(self.chance.random())))

    def rage(self, acts: list[Act]) -> None:
        """Until all is done that was planned."""
        left = list(acts)
        for progress in self._looks():
            left = [act for act in left if not act.is_due(progress) or not self._do(act)]
            if not left:
                break
        for place in self.places:
            place.finish_off()

    def calm_down(self) -> None:
        """Waits until everything is handled and nothing is pending anywhere; then everybody is asked to end."""
        for progress in self._looks():
            is_done = progress.published >= self.events and progress.handled >= self.events
            if is_done and not progress.to_handle_here and not any(self.bus.waiting.values()):
                break
        for place in self.places:
            place.ask_to_end()
        for place in self.places:
            place.wait(END_SECONDS)

    def abandon(self) -> None:
        for place in self.places:
            place.abandon()

    @property
    def died(self) -> dict[str, Counter[str]]:
        """How often each role was killed where."""
        died: dict[str, Counter[str]] = {name: Counter() for name in self._named}
        for place in self.places:
            died[place.role.name] += place.died
        return died

    def each_event_had_its_effects_once(self) -> None:
        """What the databases and the tap say, compared with the orders: one is there if, and only if, it was committed.

        Fails for an event that was lost, repeated or out of order, and for work that is left anywhere.
        """
        orders, arrived = self.shop.orders, self.bus.arrived()
        for role, died in self.died.items():
            print(f"{role}s died {died.total()} times: {dict(died)}")
        print(f"{len(arrived) - len(orders)} events arrived more than once")
        assert len(orders) == self.events
        assert self.warehouse.reservations == dict.fromkeys(orders, 1)
        with_receipt = self.shop.ask(f"SELECT id FROM orders WHERE number % {RECEIPT_EVERY} = 0")
        assert self.warehouse.receipts == dict.fromkeys(with_receipt, 1)
        self.shop.nothing_is_left()
        self.warehouse.nothing_is_left()
        assert not any(self.bus.waiting.values()), self.bus.waiting

        first = first_arrivals(arrived)
        assert {one.order for one in first} == orders
        numbers = numbers_by_sku(first)
        for sku in KEYED_SKUS:
            assert numbers[sku] == list(range(1, self.events // len(SKUS) + 1)), sku

    def everybody_died_everywhere(self) -> None:
        """Fails if some role was not killed at one of its named points."""
        for role, points in self._named.items():
            assert points.keys() <= self.died[role].keys()

    @property
    def _named(self) -> dict[str, Points]:
        return NAMED[self.bus.provider]

    def _deaths(self, role: str) -> Iterator[Death]:
        return deaths(self._named[role], Random(self.chance.random()))

    def _do(self, act: Act) -> bool:
        """Whether it could be done; if not, it is tried again."""
        if act.what == "kill":
            return self._kill(act.role)
        if act.what in self.bus.outages:
            with self.bus.away(act.what):
                self._kill(self.bus.outages[act.what])
        else:
            self.bus.disturb(act.what)
        return True

    def _kill(self, role: str) -> bool:
        """In turns: each death that a role has before it comes to pass."""
        places = [place for place in self.places if place.role.name == role]
        return any(place.kill() for place in sorted(places, key=lambda place: place.died.total()))

    def _looks(self) -> Iterator[Progress]:
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
                print(f"{time.strftime('%X')} {self._told(progress)}", flush=True)
            if now - changed > STALLED_SECONDS:
                for place in self.places:
                    place.show_stacks()
                waiting = self.bus.waiting if self.bus.is_running else "no broker"
                raise AssertionError(f"nothing happens any more: {self._told(progress)}, waiting {waiting}")
            yield progress
            time.sleep(LOOK_SECONDS)

    def _told(self, progress: Progress) -> str:
        kills = ", ".join(f"{role}s {died.total()}" for role, died in self.died.items())
        return f"{progress} of {self.events}; killed: {kills}"

    def _progress(self) -> Progress:
        pending = f"(SELECT count(*) FROM outbox_messages WHERE {PENDING})"
        (shop,) = self.shop.ask(f"SELECT (SELECT count(*) FROM orders), {pending}")
        (warehouse,) = self.warehouse.ask(f"SELECT (SELECT count(*) FROM reservations), {pending}")
        return Progress(*shop, *warehouse)


MakeChaos = Callable[[Bus, int], Chaos]
"""The fixture `make_chaos`."""
