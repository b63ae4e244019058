"""Every error that mailroom raises on purpose, drawn once.

MailroomError
├── ConfigurationError            the settings cannot work; the message names setting, consequence, remedy
│   └── NotAllowedError           the broker does not let this user make or look at what is needed; others may
├── SchemaError                   the database is not migrated to what this code needs
├── DatabaseUnavailableError      the database cannot be reached
├── CaptureError                  an event was raised where no commit could keep it; the commit failed
│   └── CascadeError              handlers kept raising events without end
├── OpenTransactionError          publish(event) inside an open transaction, where it could not be atomic
├── EventError
│   ├── SerializationError        the event cannot be written as JSON; the commit failed (contract O3)
│   ├── UndecodableError          a payload or header cannot be read; dead-lettered at once (R5)
│   └── UnknownEventError         a name or version that this code does not know; retried, then dead-lettered (R5)
├── Reject                        raised by a handler: dead-letter this message now, without retries
├── HandlerTimeoutError           a handler ran longer than its timeout; a failure like any other (I8)
├── RolledBackError               a handler rolled back the transaction that all handlers of a message share
├── PublishError                  the broker did not take this message; a failure of the message (R4)
│   └── UnroutableError           no queue is bound to the event, and `rabbitmq.require_route` asks for one
└── TransportUnavailableError     the broker is unreachable; not the message's fault (R4)
    ├── LoginRefusedError         the broker is there and does not let this user in; waiting does not help
    └── ConnectionLostError       the connection broke while this message was in flight; it is a suspect (R4)
"""


class MailroomError(Exception):
    """The root of the tree above. What to do may be told apart from what is: the message has both."""

    def __init__(self, found: str = "", *, remedy: str | None = None) -> None:
        super().__init__(found)
        self.found = found
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.found}; {self.remedy}" if self.remedy else self.found


class ConfigurationError(MailroomError):
    """The settings cannot work. The CLI prints the message without a traceback and exits with 2."""


class NotAllowedError(ConfigurationError):
    """The broker lets this user in, and not make or look at what is needed there; an operator may."""


class SchemaError(MailroomError):
    """The database is not migrated to what this code needs; the message gives the command to run."""


class DatabaseUnavailableError(MailroomError):
    """The database cannot be reached; the message names it without its password."""


class CaptureError(MailroomError):
    """An event was raised where no commit could keep it. The commit failed; nothing was stored (contract O1)."""


class CascadeError(CaptureError):
    """Handlers of directly dispatched events kept raising events beyond `message_bus.cascade_limit` (contract O2)."""


class OpenTransactionError(MailroomError):
    """`publish(event)` was called while this task holds an open transaction; stage the event in it instead."""


class EventError(MailroomError):
    """Something about one event or message."""


class SerializationError(EventError):
    """The event cannot be written as JSON and read back unchanged. The commit failed (contract O3)."""


class UndecodableError(EventError):
    """A stored or received message cannot be read. It will never be readable: dead-lettered at once (contract R5)."""


class UnknownEventError(EventError):
    """A name or version that this code does not know; a newer instance may (contract R5)."""


class Reject(MailroomError):  # noqa: N818 - the word that handlers say
    """Raise it in a handler to dead-letter the message now, without retries."""


class HandlerTimeoutError(MailroomError):
    """A handler ran longer than its timeout (contract I8)."""


class RolledBackError(MailroomError):
    """A handler rolled back the shared transaction without raising; the message failed, nothing is half done (I2)."""


class PublishError(MailroomError):
    """The broker did not take this message, for a reason of the message's own (contract R4)."""


class UnroutableError(PublishError):
    """No queue is bound to this event, and the settings call that a failure."""


class TransportUnavailableError(MailroomError):
    """The broker is unreachable. The message was not sent; it uses up no attempt (contract R4)."""


class LoginRefusedError(TransportUnavailableError):
    """The broker is there, and does not let this user in. Waiting does not help: a start fails."""


class ConnectionLostError(TransportUnavailableError):
    """The connection broke while this message was in flight, so the message is a suspect (contract R4)."""
