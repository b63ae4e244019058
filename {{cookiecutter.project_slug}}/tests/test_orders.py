"""What the sample module promises, in each way its events can travel in one process."""

from pathlib import Path

import pytest
from sqlalchemy import select

from mailroom import Mailroom

from {{ cookiecutter.package_name }}.orders.models import Order, Reservation
from {{ cookiecutter.package_name }}.orders.service import place_order
from {{ cookiecutter.package_name }}.settings import Settings


@pytest.fixture(params=[False, True], ids=["dispatched directly", "through the outbox"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    return Settings.model_validate(
        {
            "database": {"url": f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"},
            "message_bus": {"enable_outbox": request.param, "enable_inbox": request.param},
        }
    )


async def reservations(mailroom: Mailroom) -> list[tuple[str, int]]:
    async with mailroom.reader() as session:
        return [(one.sku, one.quantity) for one in await session.scalars(select(Reservation))]


async def test_placing_an_order_reserves_stock(mailroom: Mailroom) -> None:
    order = await place_order(mailroom, "tea", 2)
    await mailroom.drain()
    assert await reservations(mailroom) == [("tea", 2)]
    async with mailroom.reader() as session:
        assert (await session.get_one(Order, order.id)).sku == "tea"


async def test_an_order_that_is_not_committed_reserves_nothing(mailroom: Mailroom) -> None:
    async with mailroom.sessions()() as session:
        session.add(Order.place("tea", 2))
        await session.flush()
        await session.rollback()
    await mailroom.drain()
    assert await reservations(mailroom) == []


async def test_an_order_of_nothing_is_refused(mailroom: Mailroom) -> None:
    with pytest.raises(ValueError, match="at least one piece"):
        await place_order(mailroom, "tea", 0)
