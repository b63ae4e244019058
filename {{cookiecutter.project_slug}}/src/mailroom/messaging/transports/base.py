"""The seam between mailroom and a broker: the Protocol `Transport`."""

from typing import Protocol

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
