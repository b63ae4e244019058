"""mailroom: events that are not lost, and handlers whose database work is done once.

At least once, with dedup: a transactional outbox on the producing side, an inbox on the consuming side, and one
rule, in `posture.py`, that decides which of them run.
"""

from mailroom.errors import ConfigurationError, MailroomError, Reject
from mailroom.events import DomainEvent, Event, IntegrationEvent
from mailroom.health import Health
from mailroom.host import Mailroom
from mailroom.inbox.store import InboxStore
from mailroom.messaging.handlers import Context, Handlers
from mailroom.persistence.aggregates import RaisesEvents
from mailroom.persistence.tables import UtcDateTime
from mailroom.settings import Settings
from mailroom.version import VERSION

__version__ = VERSION

__all__ = [
    "ConfigurationError",
    "Context",
    "DomainEvent",
    "Event",
    "Handlers",
    "Health",
    "InboxStore",
    "IntegrationEvent",
    "Mailroom",
    "MailroomError",
    "RaisesEvents",
    "Reject",
    "Settings",
    "UtcDateTime",
    "__version__",
]
