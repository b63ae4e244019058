"""What a chaos test wants of a broker of its own: to lead processes there, to disturb it, and to look into it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from arrivals import Arrival

SHOP, WAREHOUSE = "shop", "warehouse"
"""Who publishes, and who consumes."""


class Bus(Protocol):
    """With a tap: a queue of the test's own that every event reaches."""

    provider: str
    sections: dict[str, Any]
    """The settings that lead to it."""
    faults: Sequence[str]
    """What `disturb` can do to it."""
    outages: Mapping[str, str]
    """How it can be `away`, and which role is killed meanwhile."""

    @property
    def is_running(self) -> bool: ...

    @property
    def waiting(self) -> dict[str, int]:
        """How many messages are in each queue of the consumer."""

    def open_tap(self) -> None:
        """Once the consumer's queue is there."""

    def arrived(self) -> list[Arrival]:
        """All that the tap took, the oldest first. It is empty afterwards."""

    def disturb(self, fault: str) -> None: ...

    def away(self, outage: str) -> AbstractContextManager[None]:
        """It is not there inside."""
