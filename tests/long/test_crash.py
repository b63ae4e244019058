"""Contract I9 and R6: whatever is killed when, no committed event is lost, and none that was not committed is sent.

Processes place orders, relay, reserve and purge, and are killed: at every named point, and at random moments. What
the database says in the end is compared with the orders in it: an order is there if, and only if, it was committed.
"""

import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from crew import Hire, Worker
from deaths import POINTS, TAKE_OVER
from evidence import Evidence

DATABASES = 2
"""How many are crashed at the same time, for each posture."""
POSTURES = 2
NAMED = [(point, nth) for nth in (1, 2, 3) for point in POINTS]


class Crash:
    """One database, and a worker that lives on it until it is killed, again and again."""

    def __init__(self, worker: Worker, evidence: Evidence, inbox: bool, chance: random.Random) -> None:
        self.worker, self.evidence, self.inbox, self.chance = worker, evidence, inbox, chance
        self.reported: dict[str, set[str]] = {"committed": set(), "rolled_back": set()}
        self.kills = 0

    def at(self, point: str, nth: int) -> None:
        if point == TAKE_OVER:
            self.worker.run("place", self.evidence, skus=["tea"] * nth)
            self.evidence.a_relay_died_holding_everything()
        self._kill(signal.SIGKILL, f"{point}, time {nth}", point=point, nth=nth)

    def at_a_random_moment(self) -> None:
        seconds = self.chance.uniform(0.01, 0.4)
        self._kill(signal.SIGALRM, f"{seconds:.3f} s", seconds=seconds)

    def _kill(self, number: signal.Signals, when: str, **how: object) -> None:
        self.worker.start("live_until_killed", self.evidence, inbox=self.inbox, **how)
        status, reports = self.worker.wait()
        assert status == -number, f"{when}: the process was not killed there, but ended with {status}"
        self.kills += 1
        for report in reports:
            for name, order in report.items():
                if name in self.reported:
                    self.reported[name].add(order)
        self.evidence.let_time_pass()

    def survive(self) -> None:
        self.worker.run("relay_what_is_left", self.evidence, inbox=self.inbox)


@pytest.mark.parametrize("inbox", [True, False], ids=["inbox on", "inbox off"])
def test_every_committed_order_is_handled_and_nothing_else(
    inbox: bool, hire: Hire, new_database: Callable[[], Evidence], kills: int, seed: int
) -> None:
    chance = random.Random(seed)
    crashes = []
    for worker in hire(DATABASES):
        crashes.append(Crash(worker, new_database(), inbox, random.Random(chance.random())))
    wanted = kills // POSTURES

    def crash(number: int) -> None:
        mine = crashes[number]
        named = NAMED[number::DATABASES]
        while mine.kills < len(named):
            mine.at(*named[mine.kills])
        while mine.kills < wanted // DATABASES:
            if mine.kills % 2:
                mine.at_a_random_moment()
            else:
                mine.at(mine.chance.choice(list(POINTS)), mine.chance.randint(1, 5))
        mine.survive()

    with ThreadPoolExecutor(DATABASES) as threads:
        list(threads.map(crash, range(DATABASES)))

    assert sum(one.kills for one in crashes) >= wanted - 1
    repeated = 0
    for one in crashes:
        orders, reservations, receipts = one.evidence.orders, one.evidence.reservations, one.evidence.receipts
        one.evidence.nothing_is_left()
        assert one.reported["committed"] <= orders
        assert not one.reported["rolled_back"] & orders
        assert len(orders) > one.kills
        assert reservations.keys() == orders
        assert receipts.keys() == orders
        repeated += reservations.total() - len(orders)
        if inbox:
            assert reservations.total() == receipts.total() == len(orders)
        else:
            assert receipts.total() >= reservations.total()
    assert inbox or repeated, "without the inbox some order must have been handled twice, or these kills prove nothing"


def test_a_relay_takes_over_what_a_killed_one_held_once_the_lease_has_run_out(hire: Hire, evidence: Evidence) -> None:
    """Without the time travel of the other tests: the lease is a second, and it runs out by the database's clock."""
    (worker,) = hire(1)
    short = {"outbox": {"lease_seconds": 1}, "handler_timeout_seconds": 0.9}
    worker.run("place", evidence, skus=["tea"] * 20)
    worker.start("live_until_killed", evidence, inbox=True, point="after the claim", nth=1, sections=short)
    assert worker.wait()[0] == -signal.SIGKILL
    assert evidence.count("outbox_messages", "lock_token IS NOT NULL")
    worker.run("relay_what_is_left", evidence, inbox=True, sections=short)
    evidence.nothing_is_left()
    assert evidence.reservations == evidence.receipts == dict.fromkeys(evidence.orders, 1)


def test_a_handler_that_always_kills_its_process_is_given_up_and_its_neighbours_are_handled(
    hire: Hire, evidence: Evidence
) -> None:
    (worker,) = hire(1)
    worker.run("place", evidence, skus=["tea"] * 5 + ["poison"] + ["tea"] * 5)
    ends: list[int] = []
    while 0 not in ends and len(ends) < 10:
        worker.start("relay_poison", evidence, max_attempts=3)
        status, _ = worker.wait()
        ends.append(status)
        evidence.let_time_pass()
    assert ends == [-signal.SIGKILL] * 3 + [0]
    ((attempts, reason),) = evidence.ask(
        "SELECT attempts, last_error FROM outbox_messages WHERE dead_lettered_on IS NOT NULL"
    )
    assert attempts == 3
    assert "stopped without finishing" in reason
    assert evidence.count("outbox_messages", "processed_on IS NOT NULL") == 10
    assert max(evidence.ask("SELECT attempts FROM outbox_messages WHERE processed_on IS NOT NULL")) <= 1
    poison = set(evidence.ask("SELECT id FROM orders WHERE sku = 'poison'"))
    assert evidence.reservations == dict.fromkeys(evidence.orders - poison, 1)
