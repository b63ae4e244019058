"""What a database must offer so that any number of relays share one outbox: the seam `Claims`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import Connection, Executable
from sqlalchemy.sql.elements import ColumnElement

from mailroom.events import Kind


class Claims(Protocol):
    """The statements that differ between databases. Times are always the database's own (contract R1)."""

    waits_on_unique_insert: bool
    """Whether a second insert of one unique value waits for the first transaction, without blocking others (I2)."""

    def now(self) -> ColumnElement[datetime]:
        """The database's clock, UTC, the same in the whole statement."""
        ...

    def later(self, seconds: float | ColumnElement[Any]) -> ColumnElement[datetime]:
        """The database's clock moved by so many seconds, which may be negative."""
        ...

    def claim(self, kind: Kind, *, token: UUID, lease_seconds: float, limit: int) -> Executable:
        """Leases up to `limit` due rows of one kind that nobody holds, and returns them.

        A row with an ordering key is claimable only as the oldest unprocessed row of its key, leased or not,
        so no two relays ever hold one key (contract R3). The predicate stands again where the row is written.
        """
        ...

    def take_over(self, kind: Kind, *, token: UUID, lease_seconds: float) -> Executable:
        """Leases the one row whose lease ran out longest ago, charges it one attempt, and returns it (R6)."""
        ...

    def due(self) -> Executable:
        """One row that says what there is to do: `<kind>_fresh` and `<kind>_expired` as booleans (contract R7)."""
        ...

    def lock_keys(self, connection: Connection, keys: Sequence[str]) -> None:
        """Makes ids of one ordering key follow commit order, until the transaction ends (contract R3)."""
        ...
