"""Contract R4: an unreachable broker is nobody's fault, and a message that breaks the connection alone is charged."""

from mailroom.errors import ConnectionLostError, TransportUnavailableError
from mailroom.outbox.circuit import Circuit

LOST = ConnectionLostError("connection reset")


def circuit_after_losing(*row_ids: int) -> Circuit:
    """The connection broke while these rows were in flight together; the wait is over."""
    circuit = Circuit(min_pause_seconds=1, max_pause_seconds=30)
    assert not any(circuit.fail(row_id, LOST) for row_id in row_ids)
    assert circuit.is_open
    circuit.half_open()
    assert not circuit.is_open
    return circuit


def test_a_row_is_at_fault_when_two_connections_broke_under_it_alone() -> None:
    circuit = circuit_after_losing(1, 2)
    assert not circuit.fail(1, LOST)
    circuit.half_open()
    assert not circuit.fail(2, LOST)
    circuit.half_open()
    assert circuit.fail(1, LOST)


def test_rows_go_one_by_one_until_as_many_got_through_as_were_suspected() -> None:
    circuit = circuit_after_losing(1, 2, 3)
    for _ in range(3):
        assert circuit.is_half_open
        circuit.succeed()
    assert not circuit.is_half_open


def test_a_settled_row_is_suspected_no_longer() -> None:
    circuit = circuit_after_losing(1, 2)
    assert not circuit.fail(1, LOST)
    for row_id in (1, 2):
        circuit.acquit(row_id)
    circuit.half_open()
    circuit.succeed()
    assert not circuit.is_half_open
    assert not circuit.fail(1, LOST)


def test_a_broker_that_is_not_there_makes_nobody_a_suspect() -> None:
    circuit = circuit_after_losing(1)
    for _ in range(3):
        assert not circuit.fail(1, TransportUnavailableError("refused"))
        circuit.half_open()
    assert not circuit.fail(1, LOST)
