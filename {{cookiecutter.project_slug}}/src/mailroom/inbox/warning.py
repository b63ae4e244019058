"""Says once at the start what a deliberate opt-out of the inbox costs (ADR-021, contract P5)."""

from mailroom.log import get_logger
from mailroom.posture import Posture, inbox_disabled_warning

logger = get_logger(__name__)


class InboxDisabledWarning:
    """One WARNING line: registered only for a broker whose inbox was switched off by hand."""

    name = "InboxDisabledWarning"

    def __init__(self, posture: Posture) -> None:
        self._posture = posture

    async def start(self) -> None:
        logger.warning(inbox_disabled_warning(self._posture))

    async def stop(self) -> None:
        """Nothing runs."""
