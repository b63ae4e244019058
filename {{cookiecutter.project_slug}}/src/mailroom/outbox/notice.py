"""Says once at the start what it costs that the outbox is off; being off is never silent (ADR-100, contract P5)."""

from collections.abc import Mapping

from sqlalchemy.exc import DBAPIError

from mailroom.log import get_logger
from mailroom.outbox.administration import OutboxAdministration
from mailroom.posture import Posture, outbox_disabled_notice

logger = get_logger(__name__)


class OutboxDisabledNotice:
    """One INFO line; and a WARNING with their count if rows wait from a time when the outbox was on."""

    name = "OutboxDisabledNotice"

    def __init__(self, posture: Posture, outboxes: Mapping[str, OutboxAdministration]) -> None:
        self._posture = posture
        self._outboxes = outboxes

    async def start(self) -> None:
        logger.info(outbox_disabled_notice(self._posture))
        for name, outbox in self._outboxes.items():
            try:
                pending = (await outbox.stats()).pending
            except (DBAPIError, OSError) as error:
                logger.warning("data source unavailable", data_source=name, reason=str(error))
                continue
            if pending:
                logger.warning(
                    f"{pending} outbox messages are pending from a time when the outbox was on, and nothing sends "
                    "them; `outbox drain` does",
                    pending=pending,
                    data_source=name,
                )

    async def stop(self) -> None:
        """Nothing runs."""
