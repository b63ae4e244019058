"""Contract R8, fault F7: a purge of very many rows beside producers and relays locks nobody out and loses nothing."""

import os
import signal

from crew import Hire
from evidence import Evidence

ROWS = int(os.environ.get("MAILROOM_ROWS") or 5_000)
PRODUCERS = 2
RELAYS = 4


def test_what_has_expired_is_purged_while_producers_commit_and_four_relays_mark(hire: Hire, evidence: Evidence) -> None:
    """The purge ends while the others go on, so it makes progress under their load."""
    evidence.much_has_expired(ROWS)
    purger, *others = hire(1 + PRODUCERS + RELAYS)
    producers, relays = others[:PRODUCERS], others[PRODUCERS:]
    for relay in relays:
        relay.start("relay_until_told", evidence)
    for producer in producers:
        producer.start("sell_until_told", evidence)
    for worker in others:
        worker.read_until("ready")
    (report,) = purger.run("purge", evidence)
    sold = 0
    for producer in producers:
        producer.signal(signal.SIGTERM)
        sold += producer.read_until("sold")
        assert producer.wait()[0] == 0
    for relay in relays:
        relay.signal(signal.SIGTERM)
    assert [relay.wait()[0] for relay in relays] == [0] * RELAYS

    assert report["purged"] == {"processed": ROWS, "inbox": ROWS, "dead_lettered": 0}
    evidence.nothing_is_left()
    assert len(evidence.orders) == sold
    assert evidence.reservations == evidence.receipts == dict.fromkeys(evidence.orders, 1)
    assert evidence.count("outbox_messages") == evidence.count("inbox_messages") == 2 * sold
    assert evidence.ask("SELECT DISTINCT attempts FROM outbox_messages") == [0]
    assert evidence.deadlocks == 0
