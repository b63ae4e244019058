"""What can be counted and measured, through OpenTelemetry (contract A2). Without an SDK these calls cost nothing."""

from opentelemetry import metrics

_meter = metrics.get_meter("mailroom")
_relayed = _meter.create_counter("mailroom.outbox.relayed", description="Outbox rows by what became of them")
_consumed = _meter.create_counter("mailroom.inbox.consumed", description="Consumed messages by what became of them")
_lag = _meter.create_histogram("mailroom.dispatch.lag", unit="s", description="From the event to its handling")


def relayed(kind: str, event_type: str, verdict: str) -> None:
    """Counts one outbox row: processed, failed, dead-lettered or released."""
    _relayed.add(1, {"kind": kind, "event_type": event_type, "verdict": verdict})


def consumed(event_type: str, outcome: str, lag_seconds: float) -> None:
    """Counts one consumed message: handled, duplicate, unhandled or failed, and how old it was (seconds)."""
    _consumed.add(1, {"event_type": event_type, "outcome": outcome})
    _lag.record(lag_seconds, {"event_type": event_type})
