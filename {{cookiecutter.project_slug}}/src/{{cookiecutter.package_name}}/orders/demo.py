"""`demo`: the whole way of an event, to look at."""

import asyncio
import logging
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from sqlalchemy import select

from mailroom import Mailroom, posture
from mailroom.errors import MailroomError
from mailroom.log import configure_logging
from mailroom.persistence import schema

from {{ cookiecutter.package_name }}.app import create_mailroom
from {{ cookiecutter.package_name }}.orders.models import Order, Reservation
from {{ cookiecutter.package_name }}.orders.service import place_order

BASKET = (("tea", 2), ("honey", 1), ("biscuits", 12))
LOOKS = 300
SECONDS_BETWEEN_LOOKS = 0.1
console = Console()


def demo() -> None:
    """Migrate the database, place three orders, and show what became of their events."""
    mailroom = create_mailroom()
    configure_logging(mailroom.settings.logging, at_least=logging.WARNING)
    asyncio.run(_demo(mailroom))


async def _demo(mailroom: Mailroom) -> None:
    console.rule("1. migrate")
    await schema.upgrade(mailroom.database.engine)
    console.print(f"{mailroom.database.safe_url} is at migration {', '.join(schema.heads())}")

    await mailroom.ensure_connected()
    console.rule("2. what runs here")
    for line in posture.explain(mailroom.posture):
        console.print(f"- {line}")

    console.rule("3. place orders")
    before = await mailroom.outbox.stats()
    orders = [await place_order(mailroom, sku, quantity) for sku, quantity in BASKET]
    written = (await mailroom.outbox.stats()).pending
    console.print(f"{len(orders)} orders committed; {written} rows wait in the outbox")
    if mailroom.posture.is_broker:
        async with mailroom.running():
            await _until_handled(mailroom, orders, before.processed + len(orders))
            await _show(mailroom, orders)
    else:
        if mailroom.posture.outbox.enabled:
            await mailroom.drain()
            console.print(f"the relay sent them; {(await mailroom.outbox.stats()).pending} rows wait now")
        await _show(mailroom, orders)
    await mailroom.close()


async def _until_handled(mailroom: Mailroom, orders: Sequence[Order], processed: int) -> None:
    """The relay publishes, and the consumer of this very service takes what comes back from the broker."""
    provider = mailroom.posture.provider
    for _ in range(LOOKS):
        is_sent = (await mailroom.outbox.stats()).processed >= processed
        if is_sent and len(await _reservations_of(mailroom, orders)) == len(orders):
            console.print(f"the relay published them to {provider}, and the consumer of this service handled them")
            return
        await asyncio.sleep(SECONDS_BETWEEN_LOOKS)
    raise MailroomError(
        f"not all of them came back over {provider} within {LOOKS * SECONDS_BETWEEN_LOOKS:g} seconds",
        remedy="run: {{ cookiecutter.project_slug }} doctor",
    )


async def _show(mailroom: Mailroom, orders: Sequence[Order]) -> None:
    console.rule("4. what the handler did")
    console.print(_table(await _reservations_of(mailroom, orders)))
    stats = await mailroom.outbox.stats()
    console.print(
        f"rows in outbox_messages: {stats.pending + stats.processed + stats.dead_lettered} "
        f"({stats.processed} processed); rows in inbox_messages: {stats.inbox}"
    )


async def _reservations_of(mailroom: Mailroom, orders: Sequence[Order]) -> Sequence[Reservation]:
    statement = select(Reservation).where(Reservation.order_id.in_([order.id for order in orders]))
    async with mailroom.reader() as session:
        return (await session.scalars(statement.order_by(Reservation.reserved_on))).all()


def _table(reservations: Sequence[Reservation]) -> Table:
    table = Table("order", "sku", "reserved", title="reservations")
    for reservation in reservations:
        table.add_row(str(reservation.order_id), reservation.sku, str(reservation.quantity))
    return table
