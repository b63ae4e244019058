"""What the double does wrong because it was told to."""

import time
from dataclasses import dataclass

SERVER_BUSY = "com.microsoft:server-busy"


@dataclass
class Refusal:
    """So many sends, to one entity or to any, are answered with this condition."""

    condition: str
    description: str
    entity: str | None
    times: int


class Faults:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.refuses_connections = False
        self._refusals: list[Refusal] = []
        self._busy_until = 0.0

    def throttle(self, seconds: float) -> None:
        self._busy_until = time.monotonic() + seconds

    def refuse(self, refusal: Refusal) -> None:
        self._refusals.append(refusal)

    def is_busy(self) -> bool:
        return time.monotonic() < self._busy_until

    def of_send(self, entity: str) -> tuple[str, str] | None:
        """The condition and the description that a send to the entity gets now. A refusal is used up by it."""
        if self.is_busy():
            return SERVER_BUSY, "The request was terminated because the entity is being throttled. Error code: 50009."
        for refusal in self._refusals:
            if refusal.entity in (None, entity.lower()):
                refusal.times -= 1
                if refusal.times <= 0:
                    self._refusals.remove(refusal)
                return refusal.condition, refusal.description
        return None
