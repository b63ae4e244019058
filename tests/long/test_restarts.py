"""A database server that restarts or crashes costs retries and no event (contract I9)."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import Hire
from evidence import Evidence
from own_postgres import OwnPostgres, programs

from mailroom.testing import databases

ORDERS = 400
RESTARTS = ("fast", "immediate", "fast", "immediate")


@pytest.fixture
def server() -> Iterator[OwnPostgres]:
    found = programs()
    if "postgres" not in databases.PRESENT or found is None:
        if databases.is_required("postgres"):
            pytest.fail("no initdb and pg_ctl are here: install the server of PostgreSQL")
        pytest.skip("no initdb and pg_ctl are here")
    with OwnPostgres(found) as server:
        yield server


def test_a_server_that_restarts_and_crashes_under_load_loses_no_event_and_repeats_no_effect(
    server: OwnPostgres, hire: Hire, tmp_path: Path
) -> None:
    evidence = Evidence.of_new_database(server.url, tmp_path)
    service, producer = hire(2)
    service.start("run_service", evidence, inbox=True, pause_seconds=0, shutdown_timeout_seconds=20)
    producer.start("sell_whatever_happens", evidence, count=ORDERS)
    committed = set()
    for number, mode in enumerate(RESTARTS, start=1):
        while len(committed) < ORDERS * number // (len(RESTARTS) + 1):
            committed.add(producer.read_until("committed"))
        server.restart(mode)
    status, reports = producer.wait()
    assert status == 0
    committed |= {report["committed"] for report in reports}
    service.signal(signal.SIGTERM)
    assert service.wait()[0] == 0
    evidence.let_time_pass()
    service.run("relay_what_is_left", evidence, inbox=True)

    evidence.nothing_is_left()
    assert len(committed) == ORDERS
    assert committed <= evidence.orders
    assert evidence.reservations == dict.fromkeys(evidence.orders, 1)
