"""The two tables of the contract (T1, T2), and how times are stored (T3).

The initial migration spells the same tables out; `alembic check` and a test hold the two together.
"""

from datetime import UTC, datetime
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    Identity,
    Index,
    Integer,
    MetaData,
    String,
    Unicode,
    UnicodeText,
    Uuid,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

PENDING = "processed_on IS NULL AND dead_lettered_on IS NULL"
"""What a relay may still have to do. Statements repeat it word for word, so that the partial indexes serve them."""

LAST_ERROR_LENGTH = 4000
NAME_LENGTH = 200
"""The longest event name and ordering key, in characters."""
OrderingKey = Unicode(NAME_LENGTH).with_variant(Unicode(2 * NAME_LENGTH), "mssql")
LastError = Unicode(LAST_ERROR_LENGTH).with_variant(UnicodeText(), "mssql")
"""SQL Server counts in units of 16 bits, of which an emoji takes two, and holds 4,000 of them outside of texts."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware point in time: written as UTC, read back aware, on every database (contract T3).

    A naive datetime is refused with ValueError: nobody could say which hour it means.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; pass an aware datetime, for example datetime.now(UTC)")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


IdentityKey = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only where the type is exactly INTEGER."""


def partial_index(name: str, *columns: str, where: str) -> Index:
    """An index over the rows that match `where`, on every database that has such indexes."""
    return Index(
        name,
        *columns,
        sqlite_where=text(where),
        postgresql_where=text(where),
        mssql_where=text(where),
    )


class MailroomBase(DeclarativeBase):
    """The framework's own metadata: always both tables, whatever the posture (contract T4, T5)."""

    metadata = MetaData()


class OutboxMessage(MailroomBase):
    """One event on its way out (contract T1).

    Pending: neither processed nor dead-lettered. Leased: `lock_token` and `locked_until` are set, together.
    """

    __tablename__ = "outbox_messages"
    __table_args__ = (
        CheckConstraint("kind IN ('domain', 'integration')", name="ck_outbox_messages_kind"),
        Index("ix_outbox_messages_message_id", "message_id", unique=True),
        partial_index("ix_outbox_messages_pending", "kind", "locked_until", "available_on", "id", where=PENDING),
        partial_index(
            "ix_outbox_messages_ordering_key",
            "kind",
            "ordering_key",
            "id",
            where=f"ordering_key IS NOT NULL AND {PENDING}",
        ),
        partial_index("ix_outbox_messages_processed_on", "processed_on", where="processed_on IS NOT NULL"),
        partial_index("ix_outbox_messages_dead_lettered_on", "dead_lettered_on", where="dead_lettered_on IS NOT NULL"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(IdentityKey, Identity(), primary_key=True)
    message_id: Mapped[UUID] = mapped_column(Uuid)
    kind: Mapped[str] = mapped_column(String(20))
    event_type: Mapped[str] = mapped_column(Unicode(NAME_LENGTH))
    event_version: Mapped[int] = mapped_column(Integer)
    payload: Mapped[str] = mapped_column(UnicodeText)
    headers: Mapped[str] = mapped_column(UnicodeText)
    ordering_key: Mapped[str | None] = mapped_column(OrderingKey)
    occurred_on: Mapped[datetime] = mapped_column(UtcDateTime)
    available_on: Mapped[datetime] = mapped_column(UtcDateTime)
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    last_error: Mapped[str | None] = mapped_column(LastError)
    lock_token: Mapped[UUID | None] = mapped_column(Uuid)
    locked_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    processed_on: Mapped[datetime | None] = mapped_column(UtcDateTime)
    dead_lettered_on: Mapped[datetime | None] = mapped_column(UtcDateTime)


class InboxMessage(MailroomBase):
    """One message that was handled here (contract T2). The unique index is what makes two deliveries one."""

    __tablename__ = "inbox_messages"
    __table_args__ = (
        Index("ix_inbox_messages_message_id", "message_id", unique=True),
        Index("ix_inbox_messages_processed_on", "processed_on"),
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(IdentityKey, Identity(), primary_key=True)
    message_id: Mapped[UUID] = mapped_column(Uuid)
    event_type: Mapped[str] = mapped_column(Unicode(NAME_LENGTH))
    processed_on: Mapped[datetime] = mapped_column(UtcDateTime)
