"""What the sample module promises, and what its events survive."""

from uuid import uuid4

import pytest
from sqlalchemy import select

from mailroom import Mailroom
from mailroom.testing import Clock, Harness, Outcome, raised_by

from {{ cookiecutter.package_name }}.orders.events import OrderPlaced
from {{ cookiecutter.package_name }}.orders.handlers import reserve_stock
from {{ cookiecutter.package_name }}.orders.models import Order, Reservation
from {{ cookiecutter.package_name }}.orders.service import place_order
from {{ cookiecutter.package_name }}.settings import Settings


async def reservations(mailroom: Mailroom) -> list[tuple[str, int]]:
    async with mailroom.reader() as session:
        return [(one.sku, one.quantity) for one in await session.scalars(select(Reservation))]


def test_an_order_says_that_it_was_placed() -> None:
    order = Order.place("tea", 2)
    (event,) = raised_by(order)
    assert event.model_dump() == {"order_id": order.id, "sku": "tea", "quantity": 2}


def test_an_order_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one piece"):
        Order.place("tea", 0)


async def test_placing_an_order_reserves_stock(mailroom: Mailroom, harness: Harness) -> None:
    order = await place_order(mailroom, "tea", 2)
    assert [event.order_id for event in harness.raised(OrderPlaced)] == [order.id]
    await harness.drain()
    assert await reservations(mailroom) == [("tea", 2)]
    async with mailroom.reader() as session:
        assert (await session.get_one(Order, order.id)).sku == "tea"


async def test_an_order_that_is_not_committed_reserves_nothing(mailroom: Mailroom, harness: Harness) -> None:
    async with mailroom.sessions()() as session:
        session.add(Order.place("tea", 2))
        await session.flush()
        await session.rollback()
    await harness.drain()
    await harness.assert_outbox()
    assert await reservations(mailroom) == []


async def test_news_that_arrive_twice_reserve_once(mailroom: Mailroom, harness: Harness) -> None:
    await place_order(mailroom, "tea", 2)
    (event,) = harness.raised(OrderPlaced)
    assert await harness.deliver(event) is Outcome.HANDLED
    assert await harness.deliver(event) is Outcome.DUPLICATE
    await harness.drain()
    assert await reservations(mailroom) == [("tea", 2)]


async def test_a_reservation_that_fails_twice_is_made_at_the_third_try(mailroom: Mailroom, harness: Harness) -> None:
    await place_order(mailroom, "tea", 2)
    with harness.failing(reserve_stock, times=2):
        await harness.drain()
    assert await reservations(mailroom) == [("tea", 2)]
    await harness.assert_outbox(processed=1)


async def test_a_failed_reservation_waits_before_it_is_tried_again(
    mailroom: Mailroom, harness: Harness, clock: Clock
) -> None:
    clock.freeze()
    await place_order(mailroom, "tea", 2)
    with harness.failing(reserve_stock):
        await harness.relay_once()
    assert await harness.relay_once() == 0
    clock.move(minutes=1)
    assert await harness.relay_once() == 1
    assert await reservations(mailroom) == [("tea", 2)]


async def test_news_of_an_order_that_does_not_exist_are_kept_as_a_dead_letter(
    mailroom: Mailroom, harness: Harness
) -> None:
    await mailroom.publish(OrderPlaced(order_id=uuid4(), sku="tea", quantity=2))
    await harness.drain()
    await harness.assert_outbox(dead_lettered=1)
    (row,) = await harness.outbox(OrderPlaced)
    assert "foreign key" in (row.last_error or "").lower()


class TestWithoutOutbox:
    """The same module where events are dispatched directly after the commit."""

    @pytest.fixture
    def settings(self, database_url: str) -> Settings:
        return Settings.model_validate({"database": {"url": database_url}, "message_bus": {"enable_outbox": False}})

    async def test_stock_is_reserved_by_the_time_the_order_is_placed(
        self, mailroom: Mailroom, harness: Harness
    ) -> None:
        await place_order(mailroom, "tea", 2)
        assert await reservations(mailroom) == [("tea", 2)]
        await harness.assert_outbox()
