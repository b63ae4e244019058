"""The tables of this module, and the rules that hold for them."""

from datetime import UTC, datetime
from uuid import UUID, uuid4

from sqlalchemy import ForeignKey, Unicode
from sqlalchemy.orm import Mapped, mapped_column

from mailroom import RaisesEvents, UtcDateTime

from {{ cookiecutter.package_name }}.models import Base
from {{ cookiecutter.package_name }}.orders.events import OrderPlaced


def _now() -> datetime:
    return datetime.now(UTC)


class Order(RaisesEvents, Base):
    """An order of some quantity of one product."""

    __tablename__ = "orders"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    sku: Mapped[str] = mapped_column(Unicode(100))
    quantity: Mapped[int]
    placed_on: Mapped[datetime] = mapped_column(UtcDateTime, default=_now)

    @classmethod
    def place(cls, sku: str, quantity: int) -> "Order":
        """A new order, which says so when it is committed. Raises ValueError for less than one piece."""
        if quantity < 1:
            raise ValueError(f"an order needs at least one piece, not {quantity}")
        order = cls(id=uuid4(), sku=sku, quantity=quantity)
        order.raise_event(OrderPlaced(order_id=order.id, sku=sku, quantity=quantity))
        return order


class Reservation(Base):
    """Goods set aside for an order. Nothing here forbids a second one: that each event counts once is the inbox's."""

    __tablename__ = "reservations"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    order_id: Mapped[UUID] = mapped_column(ForeignKey("orders.id"), index=True)
    sku: Mapped[str] = mapped_column(Unicode(100))
    quantity: Mapped[int]
    reserved_on: Mapped[datetime] = mapped_column(UtcDateTime, default=_now)
