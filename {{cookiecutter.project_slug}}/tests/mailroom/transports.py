"""The transports that the contract is tried on, and what each of them cannot do. A new one adds its name here."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from support import rows

from mailroom import Mailroom
from mailroom.messaging.transports import PACKAGES

PRESENT = [name for name in PACKAGES if find_spec(f"mailroom.messaging.transports.{name}")]


@dataclass(frozen=True, kw_only=True)
class Features:
    """What differs without being a fault."""

    redelivers_itself: bool
    """A failed message stays with the broker; else it stays in the outbox, and the relay tries it again."""


@dataclass(kw_only=True)
class Carrier:
    """One transport in the hands of a test."""

    name: str
    features: Features
    settings: dict[str, Any]
    """The sections of the settings that it needs."""
    own: Any = field(default=None)
    """Its broker, for what goes past mailroom."""

    async def given_up(self, mailroom: Mailroom) -> list[str]:
        """Why messages were dead-lettered, in the transport's own place for them."""
        if not self.features.redelivers_itself:
            return [row.last_error or "" for row in await rows(mailroom) if row.dead_lettered_on is not None]
        return [entry.reason for entry in await mailroom.transport.dead_letters.entries(limit=1000)]  # type: ignore[attr-defined]


@contextmanager
def carrier(name: str) -> Iterator[Carrier]:
    if name == "in_process":
        outbox = {"max_attempts": 4, "backoff_base_seconds": 0.05, "backoff_max_seconds": 0.2}
        yield Carrier(
            name=name,
            features=Features(redelivers_itself=False),
            settings={
                "message_bus": {"enable_outbox": True, "enable_inbox": True},
                "outbox": {**outbox, "polling_interval_seconds": 0.05},
            },
        )
        return
    with _broker(name) as own:
        yield Carrier(
            name=name,
            features=Features(redelivers_itself=True),
            settings={**own.settings(), "outbox": {"polling_interval_seconds": 0.05, "retention_days": 0}},
            own=own,
        )


def _broker(name: str) -> AbstractContextManager[Any]:
    """Each needs the client of its broker, which not every project has."""
    if name == "rabbitmq":
        import rabbitmq_support

        return rabbitmq_support.broker()
    import service_bus_support

    return service_bus_support.bus()
