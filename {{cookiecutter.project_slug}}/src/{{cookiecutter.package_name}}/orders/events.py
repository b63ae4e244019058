"""What this module tells the rest of the world."""

from uuid import UUID

from mailroom import IntegrationEvent


class OrderPlaced(IntegrationEvent, name="{{ cookiecutter.project_slug }}.order-placed"):
    """An order was placed and stored."""

    order_id: UUID
    sku: str
    quantity: int
