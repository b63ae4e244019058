"""What can be done with orders."""

from mailroom import Mailroom

from {{ cookiecutter.package_name }}.orders.models import Order


async def place_order(mailroom: Mailroom, sku: str, quantity: int) -> Order:
    """Stores an order, and with it, in one transaction, the news of it. Raises ValueError for no quantity."""
    async with mailroom.transaction() as session:
        order = Order.place(sku, quantity)
        session.add(order)
    return order
