"""Fault F8 and contract R1, R6: many processes on one database, none of which fails, none of which repeats."""

import os
import signal
import time

import pytest
from crew import Hire
from evidence import Evidence

PRODUCERS = 4
COMMITS = 500
EVENTS = int(os.environ.get("MAILROOM_EVENTS") or 600)
RELAYS = 4


def test_four_processes_read_then_write_beside_a_relay_and_none_fails(hire: Hire, evidence: Evidence) -> None:
    *producers, relay = hire(PRODUCERS + 1)
    total = PRODUCERS * COMMITS
    relay.start("relay", evidence, inbox=True, batch_size=50, count=total)
    for producer in producers:
        producer.start("sell", evidence, count=COMMITS)
    assert [producer.wait()[0] for producer in producers] == [0] * PRODUCERS
    assert relay.wait()[0] == 0

    assert evidence.ask("SELECT sold FROM shelves") == [total]
    assert sorted(evidence.ask("SELECT number FROM orders")) == list(range(1, total + 1))
    assert evidence.reservations == dict.fromkeys(evidence.orders, 1)
    assert evidence.receipts == dict.fromkeys(evidence.orders, 1)
    assert evidence.ask("SELECT DISTINCT attempts FROM outbox_messages") == [0]
    evidence.nothing_is_left()


def test_four_relays_share_one_outbox_and_no_row_is_handled_twice(hire: Hire, evidence: Evidence) -> None:
    """The inbox is off: it would hide what this test looks for."""
    producer, *relays = hire(1 + RELAYS)
    for relay in relays:
        relay.start("relay", evidence, inbox=False, batch_size=10, count=EVENTS)
    for relay in relays:
        relay.read_until("ready")
    producer.run("place", evidence, skus=["tea"] * EVENTS)
    assert [relay.wait()[0] for relay in relays] == [0] * RELAYS

    assert len(evidence.orders) == EVENTS
    assert evidence.reservations == dict.fromkeys(evidence.orders, 1)
    assert evidence.receipts == dict.fromkeys(evidence.orders, 1)
    assert evidence.ask("SELECT DISTINCT attempts FROM outbox_messages") == [0]
    assert len(evidence.ask("SELECT DISTINCT pid FROM reservations")) > 1, "one relay did everything"
    evidence.nothing_is_left()


@pytest.mark.parametrize(
    ("pause_seconds", "shutdown_timeout_seconds"),
    [(0.02, 20), (3600, 1)],
    ids=["handlers that finish", "handlers that hang"],
)
def test_a_service_that_is_told_to_stop_under_load_holds_nothing_and_charges_nothing(
    hire: Hire, evidence: Evidence, pause_seconds: float, shutdown_timeout_seconds: float
) -> None:
    """The inbox is off: what is handled after the stop must not have been handled before it."""
    service, producer = hire(2)
    service.start(
        "run_service",
        evidence,
        inbox=False,
        pause_seconds=pause_seconds,
        shutdown_timeout_seconds=shutdown_timeout_seconds,
    )
    producer.start("sell", evidence, count=300)
    for _ in range(8):
        service.read_until("began")
    service.signal(signal.SIGTERM)
    told = time.monotonic()
    status, _ = service.wait()
    took = time.monotonic() - told
    assert producer.wait()[0] == 0

    assert status == 0
    assert took < shutdown_timeout_seconds + 5
    assert evidence.pending
    assert evidence.ask("SELECT DISTINCT attempts FROM outbox_messages") == [0]
    assert evidence.count("outbox_messages", "lock_token IS NOT NULL OR locked_until IS NOT NULL") == 0
    assert evidence.count("outbox_messages", "last_error IS NOT NULL") == 0
    assert evidence.count("outbox_messages", "processed_on IS NOT NULL") == len(evidence.reservations)
    service.run("relay_what_is_left", evidence, inbox=False)
    assert evidence.reservations == dict.fromkeys(evidence.orders, 1)
