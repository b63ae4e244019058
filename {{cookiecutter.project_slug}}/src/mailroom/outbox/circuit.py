"""Whether the transport is there, and which messages are suspected of breaking it: a circuit breaker (contract R4).

closed ──no broker──► open: wait ──► half-open: one row at a time ──as many got through as were suspected──► closed
                        ▲                        │
                        └────────no broker───────┘
"""

from mailroom.backoff import backoff_seconds
from mailroom.errors import ConnectionLostError, TransportUnavailableError
from mailroom.log import get_logger

logger = get_logger(__name__)

LOSSES_THAT_COUNT = 2
"""So many connections must break under one message alone before that is called its fault."""


class Circuit:
    """The state of one lane's way out. It decides; the lane waits and sends."""

    def __init__(self, *, min_pause_seconds: float, max_pause_seconds: float) -> None:
        self.is_open = False
        """There is no broker: wait before the next try."""
        self._min_pause = min_pause_seconds
        self._max_pause = max_pause_seconds
        self._outages = 0
        self._to_prove = 0
        self._suspects: dict[int, int] = {}

    @property
    def is_half_open(self) -> bool:
        """Rows are sent one at a time, so that a broken connection names its cause."""
        return self._to_prove > 0

    def fail(self, row_id: int, error: TransportUnavailableError) -> bool:
        """The transport did not take a row. Returns whether that is the row's own fault."""
        if not self.is_open and not self._outages:
            logger.warning("transport unavailable", reason=str(error), consequence="the relay waits; nothing is lost")
        self.is_open = True
        if not isinstance(error, ConnectionLostError):
            return False
        losses = self._suspects.get(row_id, 0) + self.is_half_open
        self._suspects[row_id] = losses
        return losses >= LOSSES_THAT_COUNT

    def succeed(self) -> None:
        """The transport took a row."""
        if self._outages:
            logger.info("transport available again")
        self._outages = 0
        self._to_prove = max(0, self._to_prove - 1)

    def acquit(self, row_id: int) -> None:
        """A row is settled, one way or the other; it is suspected no longer."""
        self._suspects.pop(row_id, None)

    def next_pause_seconds(self) -> float:
        """How long to wait before trying again: longer from try to try."""
        self._outages += 1
        return backoff_seconds(self._outages, base=self._min_pause, cap=self._max_pause)

    def half_open(self) -> None:
        """The wait is over."""
        self.is_open = False
        self._to_prove = max(1, len(self._suspects))
