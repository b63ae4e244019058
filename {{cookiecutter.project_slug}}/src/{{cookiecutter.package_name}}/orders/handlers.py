"""What this module does when something happens."""

from typing import Any

from mailroom import Context, Handlers

from {{ cookiecutter.package_name }}.orders.events import OrderPlaced
from {{ cookiecutter.package_name }}.orders.models import Reservation

handlers = Handlers()


@handlers.on(OrderPlaced)
async def reserve_stock(event: OrderPlaced, context: Context[Any]) -> None:
    """Sets goods aside. The reservation commits together with the record that this message was handled."""
    context.session.add(Reservation(order_id=event.order_id, sku=event.sku, quantity=event.quantity))
