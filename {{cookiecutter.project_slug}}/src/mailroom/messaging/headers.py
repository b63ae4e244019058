"""What of a message is alike on every broker: a JSON body, and the headers that are ours.

    mailroom-version       the event's version
    mailroom-occurred-on   when it happened, to the microsecond
    mailroom-ordering-key  the envelope's, if it has one

The other headers of the envelope travel under their own names; names with `x-` are brokers' own. What a message has
been through is written into headers when it is put aside: mailroom-attempts, mailroom-redeliveries,
mailroom-first-seen, mailroom-reason, mailroom-exception, mailroom-stack.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid5

from mailroom.envelope import Message
from mailroom.errors import Reject, UndecodableError
from mailroom.events import LAST_VERSION, NAME_LENGTH, Kind
from mailroom.messaging.attempts import Failure, Journey

JSON = "application/json"
OURS = "mailroom-"
VERSION = "mailroom-version"
OCCURRED_ON = "mailroom-occurred-on"
ORDERING_KEY = "mailroom-ordering-key"
ATTEMPTS = "mailroom-attempts"
REDELIVERIES = "mailroom-redeliveries"
FIRST_SEEN = "mailroom-first-seen"
REASON = "mailroom-reason"
EXCEPTION = "mailroom-exception"
STACK = "mailroom-stack"
OF_ITS_JOURNEY = (ATTEMPTS, REDELIVERIES, FIRST_SEEN, REASON, EXCEPTION, STACK)

FOREIGN = UUID("9c1d1f0e-6f0b-4a43-9d0e-6c1a4b1f2d55")
"""The namespace of ids that are derived for messages of other publishers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as a broker delivered it, whatever the broker calls the parts of it."""

    message_id: str | None
    event_type: str
    content_type: str | None
    sent_on: datetime | None
    """When its publisher says it was sent."""
    headers: Mapping[str, Any]
    body: bytes

    @property
    def id(self) -> str:
        """As its publisher wrote it, or as it would be read: a copy that is put aside must stay the same message."""
        return self.message_id or str(self._derived_id)

    @property
    def _derived_id(self) -> UUID:
        """Follows from what the message is."""
        parts = (self.event_type, str(self.sent_on or ""), self.body.decode(errors="backslashreplace"))
        return uuid5(FOREIGN, "\0".join(parts))

    def journey(self, *, now: datetime) -> Journey:
        """What the message has been through so far; what is not readable counts as not yet."""
        return Journey(
            first_seen=_time(self.headers.get(FIRST_SEEN)) or now,
            attempts=_count(self.headers.get(ATTEMPTS)),
            redeliveries=_count(self.headers.get(REDELIVERIES)),
        )

    def message(self, *, limit: int, derive_id: bool) -> Message:
        """The message that was delivered. Raises UndecodableError for what is none.

        `limit` is how many bytes of payload are read. `derive_id`: a message of a foreign publisher, without an id that
        is a UUID, gets one that follows from what it is, so that a second delivery of it is recognised. Two that are
        alike in all are one then.
        """
        if self.content_type not in (None, "", JSON):
            raise UndecodableError(f"its content type is {self.content_type!r}, and only {JSON} is read")
        if len(self.body) > limit:
            raise UndecodableError(
                f"its payload has {len(self.body)} bytes, and message_bus.max_payload_bytes allows {limit}"
            )
        if not 1 <= len(self.event_type) <= NAME_LENGTH:
            raise UndecodableError(
                f"its type has {len(self.event_type)} characters, and an event name has 1 to {NAME_LENGTH}"
            )
        return Message(
            message_id=self._identity(derive_id=derive_id),
            kind=Kind.INTEGRATION,
            event_type=self.event_type,
            event_version=_version(self.headers.get(VERSION, 1)),
            payload=_text(self.body),
            headers=of_the_envelope(self.headers),
            occurred_on=_time(self.headers.get(OCCURRED_ON)) or _in_utc(self.sent_on) or datetime.now(UTC),
            ordering_key=_ordering_key(self.headers.get(ORDERING_KEY)),
        )

    def _identity(self, *, derive_id: bool) -> UUID:
        given = self.message_id or ""
        try:
            return UUID(given)
        except ValueError:
            pass
        if not derive_id:
            raise UndecodableError(
                f"its message id is {given[:100]!r} and no UUID, so a second delivery could not be recognised; let its "
                'publisher set one, or set message_bus.foreign_messages = "derive-id"'
            )
        return uuid5(FOREIGN, given) if given else self._derived_id


def body_of(message: Message, *, limit: int) -> bytes:
    """The payload as bytes. Raises Reject if it is larger than `limit`: no attempt would change that."""
    body = message.payload.encode()
    if len(body) > limit:
        raise Reject(
            f"the payload has {len(body)} bytes, and message_bus.max_payload_bytes allows {limit}; send a reference "
            "to what is large, or raise the limit in every service that handles the event"
        )
    return body


def headers_of(message: Message, *, limit: int) -> dict[str, Any]:
    """All of the envelope that no broker has a place of its own for. Raises Reject beyond `limit` bytes."""
    headers: dict[str, Any] = {
        **message.headers,
        VERSION: message.event_version,
        OCCURRED_ON: message.occurred_on.isoformat(),
    }
    if message.ordering_key is not None:
        headers[ORDERING_KEY] = message.ordering_key
    size = sum(len(name) + len(str(value)) for name, value in headers.items())
    if size * 4 > limit:
        size = sum(len(name.encode()) + len(str(value).encode()) for name, value in headers.items())
    if size > limit:
        raise Reject(f"the headers have {size} bytes, and the broker takes {limit} of them")
    return headers


def after_a_failure(headers: Mapping[str, Any], journey: Journey, failure: Failure) -> dict[str, Any]:
    """The headers of a copy that is put aside: with what the message has been through."""
    return {
        **{name: value for name, value in headers.items() if not name.startswith("x-")},
        ATTEMPTS: journey.attempts,
        REDELIVERIES: journey.redeliveries,
        FIRST_SEEN: journey.first_seen.isoformat(),
        REASON: failure.reason,
        EXCEPTION: failure.exception[:200],
        STACK: failure.stack,
    }


def for_a_replay(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers of a copy that has all its attempts before it."""
    return {name: value for name, value in headers.items() if name not in OF_ITS_JOURNEY and not name.startswith("x-")}


def of_the_envelope(headers: Mapping[str, Any]) -> dict[str, str]:
    """Text that is neither ours nor the broker's."""
    return {
        name: value for name, value in headers.items() if isinstance(value, str) and not name.startswith((OURS, "x-"))
    }


def _text(body: bytes) -> str:
    try:
        payload = body.decode()
    except UnicodeDecodeError:
        raise UndecodableError("its payload is no UTF-8") from None
    if "\0" in payload:
        raise UndecodableError("its payload holds the character NUL")
    return payload


def _time(value: Any) -> datetime | None:
    try:
        return _in_utc(datetime.fromisoformat(value))
    except (TypeError, ValueError):
        return None


def _in_utc(value: datetime | None) -> datetime | None:
    if value is None:
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _version(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= LAST_VERSION:
        raise UndecodableError(f"its header {VERSION} is {str(value)[:100]!r} and no version")
    return value


def _ordering_key(value: Any) -> str | None:
    return value[:NAME_LENGTH] if isinstance(value, str) and value else None


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
