"""Contract R3: the first publications of one key follow the commits, and no two relays ever hold one key."""

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from crew import Hire
from evidence import Evidence

SKUS = [f"tea-{number}" for number in range(20)]
PER_PRODUCER = 5
PRODUCERS = 2


class Line(NamedTuple):
    time: int
    pid: int
    what: str
    key: str
    number: int


def lines_by_key(log: Path) -> dict[str, list[Line]]:
    by_key = defaultdict(list)
    for text in log.read_text().splitlines():
        time, pid, what, key, number = text.split()
        by_key[key].append(Line(int(time), int(pid), what, key, int(number)))
    return {key: sorted(lines) for key, lines in by_key.items()}


def test_two_relays_publish_each_key_in_commit_order_and_never_hold_it_together(
    hire: Hire, evidence: Evidence, tmp_path: Path, seed: int
) -> None:
    """Every third publish fails, so most keys have a failing head at some time. `number` follows the commits."""
    log = tmp_path / "log"
    first, second, *producers = hire(2 + PRODUCERS)
    total = len(SKUS) * PER_PRODUCER * PRODUCERS
    for number, relay in enumerate((first, second)):
        relay.start("relay_by_key", evidence, log=str(log), count=total, seed=seed + number)
    for relay in (first, second):
        relay.read_until("ready")
    for number, producer in enumerate(producers):
        producer.start("sell_by_key", evidence, skus=SKUS, count=PER_PRODUCER, seed=seed + number)
    assert [worker.wait()[0] for worker in (*producers, first, second)] == [0] * (2 + PRODUCERS)
    evidence.nothing_is_left()

    by_key = lines_by_key(log)
    assert sorted(by_key) == sorted(SKUS)
    for key, lines in by_key.items():
        holder = None
        for line in lines:
            if line.what == "hold":
                assert holder is None, f"{key}: {line.pid} got it while {holder} held it"
                holder = line.pid
            else:
                assert line.pid == holder, f"{key}: {line.pid} did {line.what}, but {holder} held it"
            if line.what == "give":
                holder = None
        expected = 1
        for line in lines:
            if line.what in ("send", "sent", "fail"):
                assert line.number == expected, f"{key}: {line.what} {line.number} when it was {expected}'s turn"
            expected += line.what == "sent"
        assert expected == PER_PRODUCER * PRODUCERS + 1

    everything = [line for lines in by_key.values() for line in lines]
    assert any(line.what == "fail" for line in everything)
    assert len({line.pid for line in everything}) == 2, "one relay did everything"
