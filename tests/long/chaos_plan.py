"""What is to happen in a chaos test, and when: once so much of the work is done."""

from collections.abc import Sequence
from itertools import cycle, islice
from random import Random
from typing import NamedTuple

TURNS = ("relay", "consumer", "producer", "relay", "consumer")
"""Whose turn it is to be killed."""
FEWEST_ROUNDS = 3
FEWEST_OUTAGES = 3


class Progress(NamedTuple):
    sold: int
    to_publish: int
    handled: int
    to_handle_here: int
    """What handlers have raised in turn, and is handled where it was raised."""

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


def plan(events: int, kills: int, chance: Random, *, faults: Sequence[str], outages: Sequence[str]) -> list[Act]:
    """Spread over all events: kills, a fifth as many faults and three of each at least, and some outages; in turns."""
    faulty, away = max(FEWEST_ROUNDS * len(faults), kills // 5), FEWEST_OUTAGES + kills // 100
    acts = [Act(events * (n + 1) / (kills + 1), "kill", role) for n, role in enumerate(islice(cycle(TURNS), kills))]
    acts += [Act(events * (n + chance.random()) / (faulty + 1), faults[n % len(faults)]) for n in range(faulty)]
    acts += [Act(events * (n + 0.5) / away, outages[n % len(outages)]) for n in range(away)]
    return sorted(acts)
