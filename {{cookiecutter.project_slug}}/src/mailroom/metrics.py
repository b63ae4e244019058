"""What can be counted and measured, through OpenTelemetry (contract A2). Without its SDK these calls cost nothing."""

from collections.abc import Iterable

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

_meter = metrics.get_meter("mailroom")
_relayed = _meter.create_counter("mailroom.outbox.relayed", description="Outbox rows by what became of them")
_consumed = _meter.create_counter("mailroom.inbox.consumed", description="Consumed messages by what became of them")
_unrouted = _meter.create_counter("mailroom.broker.unrouted", description="Published events that no queue took")
_lag = _meter.create_histogram("mailroom.dispatch.lag", unit="s", description="From the event to its handling")


def relayed(kind: str, event_type: str, verdict: str) -> None:
    """Counts one outbox row: processed, failed, dead-lettered or released."""
    _relayed.add(1, {"kind": kind, "event_type": event_type, "verdict": verdict})


def consumed(event_type: str, outcome: str, lag_seconds: float) -> None:
    """Counts one consumed message: handled, duplicate, unhandled or failed, and how old it was (seconds)."""
    _consumed.add(1, {"event_type": event_type, "outcome": outcome})
    _lag.record(lag_seconds, {"event_type": event_type})


def unrouted(event_type: str) -> None:
    """Counts one event that the broker has confirmed and no queue took."""
    _unrouted.add(1, {"event_type": event_type})


class Backlog:
    """What waits in an outbox, as of the last look. Looking costs a query, so only what is collected is looked at."""

    def __init__(self) -> None:
        self.is_wanted = False
        """Whether somebody collected since the last look."""
        self._pending = 0
        self._oldest_seconds = 0.0

    def start(self) -> None:
        """From now on it is collected."""
        _backlogs.add(self)

    def stop(self) -> None:
        _backlogs.discard(self)

    def update(self, pending: int, oldest_seconds: float | None) -> None:
        """Takes in a look: how many rows wait, and how many seconds ago the oldest of their events occurred."""
        self.is_wanted = False
        self._pending = pending
        self._oldest_seconds = oldest_seconds or 0.0

    def pending(self) -> Observation:
        self.is_wanted = True
        return Observation(self._pending)

    def oldest_seconds(self) -> Observation:
        self.is_wanted = True
        return Observation(self._oldest_seconds)


_backlogs: set[Backlog] = set()


def _observe_pending(options: CallbackOptions) -> Iterable[Observation]:
    return [backlog.pending() for backlog in _backlogs]


def _observe_oldest(options: CallbackOptions) -> Iterable[Observation]:
    return [backlog.oldest_seconds() for backlog in _backlogs]


_meter.create_observable_gauge(
    "mailroom.outbox.pending", [_observe_pending], description="Outbox rows that wait to be sent"
)
_meter.create_observable_gauge(
    "mailroom.outbox.oldest", [_observe_oldest], unit="s", description="Age of the oldest event that waits"
)
