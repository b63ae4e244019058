"""The tables of the sample module, orders. Delete this file together with the module.

A reservation's order is deliberately not unique: that an event is handled once is the inbox's work.

Revision ID: 0002
Revises: 0001
"""

import sqlalchemy as sa
from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    op.create_table(
        "orders",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("sku", sa.Unicode(100), nullable=False),
        sa.Column("quantity", sa.Integer(), nullable=False),
        sa.Column("placed_on", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_orders"),
    )
    op.create_table(
        "reservations",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("order_id", sa.Uuid(), nullable=False),
        sa.Column("sku", sa.Unicode(100), nullable=False),
        sa.Column("quantity", sa.Integer(), nullable=False),
        sa.Column("reserved_on", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reservations"),
        sa.ForeignKeyConstraint(["order_id"], ["orders.id"], name="fk_reservations_order_id_orders"),
    )
    op.create_index("ix_reservations_order_id", "reservations", ["order_id"])


def downgrade() -> None:
    op.drop_table("reservations")
    op.drop_table("orders")
