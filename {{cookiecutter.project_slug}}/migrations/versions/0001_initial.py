"""The outbox and the inbox (contract T1, T2), on every database that mailroom supports.

Frozen: it spells out its own types and imports nothing of mailroom, so that it says the same for ever.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None

PENDING = "processed_on IS NULL AND dead_lettered_on IS NULL"


def upgrade() -> None:
    # SQLite numbers rows by itself only where the type is exactly INTEGER.
    identity = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    time = sa.DateTime(timezone=True)
    # SQL Server counts in units of 16 bits, of which an emoji takes two, and holds 4,000 of them outside of texts.
    ordering_key = sa.Unicode(200).with_variant(sa.Unicode(400), "mssql")
    last_error = sa.Unicode(4000).with_variant(sa.UnicodeText(), "mssql")

    op.create_table(
        "outbox_messages",
        sa.Column("id", identity, sa.Identity(), primary_key=True),
        sa.Column("message_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("event_type", sa.Unicode(200), nullable=False),
        sa.Column("event_version", sa.Integer(), nullable=False),
        sa.Column("payload", sa.UnicodeText(), nullable=False),
        sa.Column("headers", sa.UnicodeText(), nullable=False),
        sa.Column("ordering_key", ordering_key),
        sa.Column("occurred_on", time, nullable=False),
        sa.Column("available_on", time, nullable=False),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_error", last_error),
        sa.Column("lock_token", sa.Uuid()),
        sa.Column("locked_until", time),
        sa.Column("processed_on", time),
        sa.Column("dead_lettered_on", time),
        sa.CheckConstraint("kind IN ('domain', 'integration')", name="ck_outbox_messages_kind"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_outbox_messages_message_id", "outbox_messages", ["message_id"], unique=True)
    _create_partial_index("pending", ["kind", "locked_until", "available_on", "id"], PENDING)
    _create_partial_index("ordering_key", ["kind", "ordering_key", "id"], f"ordering_key IS NOT NULL AND {PENDING}")
    _create_partial_index("processed_on", ["processed_on"], "processed_on IS NOT NULL")
    _create_partial_index("dead_lettered_on", ["dead_lettered_on"], "dead_lettered_on IS NOT NULL")

    op.create_table(
        "inbox_messages",
        sa.Column("id", identity, sa.Identity(), primary_key=True),
        sa.Column("message_id", sa.Uuid(), nullable=False),
        sa.Column("event_type", sa.Unicode(200), nullable=False),
        sa.Column("processed_on", time, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_inbox_messages_message_id", "inbox_messages", ["message_id"], unique=True)
    op.create_index("ix_inbox_messages_processed_on", "inbox_messages", ["processed_on"])


def downgrade() -> None:
    op.drop_table("inbox_messages")
    op.drop_table("outbox_messages")


def _create_partial_index(suffix: str, columns: list[str], where: str) -> None:
    op.create_index(
        f"ix_outbox_messages_{suffix}",
        "outbox_messages",
        columns,
        sqlite_where=sa.text(where),
        postgresql_where=sa.text(where),
        mssql_where=sa.text(where),
    )
