"""The seam between mailroom and a broker: the Protocols `Transport` and `Broker`."""

from typing import Protocol, runtime_checkable

from mailroom.envelope import Message
from mailroom.service import Service


class Transport(Service, Protocol):
    """Carries integration events to whoever handles them.

    `publish` returns only once the message is safe (a broker confirmed it) or handled (in_process). It raises
    TransportUnavailableError if it was not sent because there is no connection, ConnectionLostError if the
    connection broke while it was in flight, Reject or UndecodableError if it can never be sent, and anything
    else for a failure of this message. It is called concurrently, and keeps no order of its own.
    """

    async def publish(self, message: Message, attempt: int) -> None: ...


@runtime_checkable
class Connects(Protocol):
    """What a transport adds that needs a connection."""

    async def connect(self) -> None:
        """Connects now. Raises TransportUnavailableError, with what to do, if that is not possible."""
        ...


@runtime_checkable
class Receives(Protocol):
    """What a transport adds that also delivers: a broker. In process, publishing is delivering."""

    @property
    def receiver(self) -> Service:
        """Takes messages from the broker and hands them to the handlers; started last, and stopped first."""
        ...
