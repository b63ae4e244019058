"""The wire envelope: one event as it is stored and sent, whatever database or transport carries it (contract O4).

message_id     UUID. The identity of the event; consumers recognise duplicates by it, never by the payload.
kind           `domain`: handled in the service that raised it; `integration`: sent over the transport.
event_type     The event's stable name, 1 to 200 of A-Z a-z 0-9 . _ - and never a Python path.
event_version  From 1. The version of the payload's shape; upcasters lead from older ones to the newest.
payload        One JSON object (RFC 8259) with the event's own fields; `serialization` says how types are written.
headers        Text by name: trace context, correlation. Not part of the event.
occurred_on    When it happened: an aware time in UTC, to the microsecond.
ordering_key   Text of 1 to 200 characters, or none. Events of one key are first published in commit order (R3).

No text in it holds NUL or a lone surrogate. A reader ignores payload fields that it does not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from mailroom.events import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One event in its envelope. Its repr shows neither payload nor headers: they may hold personal data."""

    message_id: UUID
    kind: Kind
    event_type: str
    event_version: int
    payload: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    occurred_on: datetime
    ordering_key: str | None = None
