"""A small shop: what the processes of the long tests commit, raise and handle.

No table refers to another: a reservation without its order is what these tests look for, so nothing else may
prevent one.
"""

import asyncio
import os
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from mailroom import Context, DomainEvent, Handlers, IntegrationEvent, Mailroom, RaisesEvents, Settings


class Base(DeclarativeBase):
    """The tables of the shop."""


class OrderPlaced(IntegrationEvent, name="shop.order-placed"):
    order_id: UUID
    sku: str
    number: int


class StockReserved(DomainEvent, name="shop.stock-reserved"):
    order_id: UUID


class Order(RaisesEvents, Base):
    __tablename__ = "orders"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    sku: Mapped[str]
    number: Mapped[int]

    @classmethod
    def place(cls, sku: str = "tea", number: int = 0, **how: Any) -> "Order":
        order = cls(id=uuid4(), sku=sku, number=number)
        order.raise_event(OrderPlaced(order_id=order.id, sku=sku, number=number), **how)
        return order


class Shelf(Base):
    """How many of one article were sold: read, then written, by every order."""

    __tablename__ = "shelves"

    sku: Mapped[str] = mapped_column(primary_key=True)
    sold: Mapped[int] = mapped_column(default=0)


class Reservation(Base):
    """What the handler of an order does."""

    __tablename__ = "reservations"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[UUID]
    pid: Mapped[int]


class Receipt(Base):
    """What the handler of a reservation does, in turn."""

    __tablename__ = "receipts"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[UUID]


class OutOfStockError(Exception):
    """For now."""


def reserving(
    *, pause_seconds: float = 0.0, receipt_every: int = 1, hard_every: int | None = None, failures: int = 0
) -> Handlers:
    """Reserves what was ordered, and writes a receipt once it is reserved; for orders whose number `receipt_every`
    divides. One whose number `hard_every` divides fails so many times before."""
    handlers = Handlers()

    @handlers.on(OrderPlaced)
    async def reserve(event: OrderPlaced, context: Context[Any]) -> None:
        context.session.add(Reservation(order_id=event.order_id, pid=os.getpid()))
        await context.session.flush()
        await asyncio.sleep(pause_seconds)
        if hard_every and event.number % hard_every == 0 and context.attempt <= failures:
            raise OutOfStockError
        if event.number % receipt_every == 0:
            context.publish(StockReserved(order_id=event.order_id))

    @handlers.on(StockReserved)
    async def write_receipt(event: StockReserved, context: Context[Any]) -> None:
        context.session.add(Receipt(order_id=event.order_id))

    return handlers


def compose(
    url: str, *handlers: Handlers, inbox: bool, sections: dict[str, Any] | None = None, **more: Any
) -> Mailroom:
    """A mailroom on this database, with the outbox on and everything quick. `sections` go to the settings."""
    given = sections or {}
    settings = Settings(
        database={"url": url, "busy_timeout_seconds": 60},  # how long SQLite's crowd waits depends on the machine
        message_bus={"enable_outbox": True, "enable_inbox": inbox, **given.get("message_bus", {})},
        outbox={
            "polling_interval_seconds": 0.05,
            "max_attempts": 100,
            "backoff_base_seconds": 0.01,
            "backoff_max_seconds": 0.05,
            **given.get("outbox", {}),
        },
        **{name: value for name, value in given.items() if name not in ("message_bus", "outbox")},
    )
    return Mailroom(settings, handlers=handlers, events=(OrderPlaced, StockReserved), **more)
