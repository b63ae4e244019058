"""A small bank: what the framework's own tests raise, handle and store."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import ForeignKey, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from mailroom import Context, DomainEvent, Handlers, IntegrationEvent, Mailroom, RaisesEvents, Settings
from mailroom.envelope import Message
from mailroom.messaging.consumer import Consumer
from mailroom.persistence.database import Database
from mailroom.persistence.tables import InboxMessage, MailroomBase, OutboxMessage

Compose = Callable[..., Awaitable[Mailroom]]
"""The fixture `compose`."""


class Base(DeclarativeBase):
    """The tables of the bank."""


class Deposited(IntegrationEvent, name="bank.deposited"):
    amount: int
    account: str = "anna"


class Renamed(DomainEvent, name="bank.renamed"):
    new_name: str


class Account(RaisesEvents, Base):
    __tablename__ = "accounts"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid4)
    name: Mapped[str] = mapped_column(default="anna")
    balance: Mapped[int] = mapped_column(default=0)

    def deposit(self, amount: int, **how: Any) -> None:
        self.balance = (self.balance or 0) + amount
        self.raise_event(Deposited(amount=amount), **how)


class Effect(Base):
    """What a handler did; one row too many is a card charged twice."""

    __tablename__ = "effects"

    id: Mapped[int] = mapped_column(primary_key=True)
    message_id: Mapped[UUID]
    what: Mapped[str] = mapped_column(default="")
    account_id: Mapped[UUID | None] = mapped_column(ForeignKey("accounts.id"))


def effect(context: Context[Any], what: str = "") -> None:
    """Leaves a trace of a handler in its own transaction."""
    context.session.add(Effect(message_id=context.message_id, what=what))


async def note(event: Deposited, context: Context[Any]) -> None:
    """A handler that leaves the amount behind."""
    effect(context, str(event.amount))


def handling(function: Callable[[Any, Context[Any]], Awaitable[None]]) -> Handlers:
    """Deposits, by this function."""
    handlers = Handlers()
    handlers.on(Deposited)(function)
    return handlers


def noting() -> Handlers:
    """Each deposit leaves its amount behind."""
    return handling(note)


async def done(mailroom: Mailroom, *expected: str) -> None:
    """Waits for as many effects, and compares them in any order."""

    async def are_there() -> bool:
        return len(await effects(mailroom)) >= len(expected)

    await until(are_there)
    assert sorted(await effects(mailroom)) == sorted(expected)


async def create_tables(mailroom: Mailroom) -> None:
    await create_all(mailroom.database)


async def create_all(database: Database) -> None:
    async with database.engine.begin() as connection:
        for metadata in (MailroomBase.metadata, Base.metadata):
            await connection.run_sync(metadata.create_all)


async def effects(mailroom: Mailroom) -> list[str]:
    """What handlers did and committed, in order."""
    async with mailroom.reader() as session:
        return list((await session.scalars(select(Effect.what).order_by(Effect.id))).all())


async def rows(mailroom: Mailroom) -> list[OutboxMessage]:
    """The outbox, oldest first."""
    async with mailroom.reader() as session:
        return list((await session.scalars(select(OutboxMessage).order_by(OutboxMessage.id))).all())


def outbox_row(**values: object) -> dict[str, object]:
    """What can be inserted into the outbox past mailroom."""
    now = datetime.now(UTC)
    return {
        "message_id": uuid4(),
        "kind": "integration",
        "event_type": "shop.order-placed",
        "event_version": 1,
        "payload": "{}",
        "headers": "{}",
        "occurred_on": now,
        "available_on": now,
    } | values


async def inbox_ids(mailroom: Mailroom) -> list[UUID]:
    async with mailroom.reader() as session:
        return list((await session.scalars(select(InboxMessage.message_id).order_by(InboxMessage.id))).all())


async def count(session: AsyncSession, table: type[DeclarativeBase]) -> int:
    return (await session.execute(select(func.count()).select_from(table))).scalar_one()


async def query(engine: AsyncEngine, sql: str) -> list[tuple[object, ...]]:
    async with engine.connect() as connection:
        return [tuple(row) for row in await connection.execute(text(sql))]


async def change_rows(mailroom: Mailroom, *conditions: Any, **values: Any) -> None:
    """Moves rows through time or state, where a test would otherwise have to wait or to crash."""
    async with mailroom.database.connection() as connection:
        await connection.execute(update(OutboxMessage).where(*conditions).values(**values))


async def make_due(mailroom: Mailroom) -> None:
    """Lets every backoff and delay pass."""
    await change_rows(mailroom, available_on=mailroom.database.claims.later(-1))


async def expire_leases(mailroom: Mailroom) -> None:
    """What the database looks like after the relays that hold rows were killed, and their leases ran out."""
    await change_rows(mailroom, OutboxMessage.lock_token.is_not(None), locked_until=mailroom.database.claims.later(-1))


class Broker:
    """A stand-in for a broker: what a test wants it to do with a message, and what it was given."""

    def __init__(self, behave: Callable[[Message], Awaitable[None]] | None = None) -> None:
        self.name = "stand_in"
        self.sent: list[int] = []
        self.behave = behave

    def __call__(self, settings: Settings, consumer: Consumer) -> "Broker":
        return self

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def publish(self, message: Message, attempt: int) -> None:
        if self.behave is not None:
            await self.behave(message)
        self.sent.append(amount_of(message))


def amount_of(message: Any) -> int:
    return int(message.payload.split(":")[1].split(",")[0])


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Waits for what other tasks do; the test's own timeout is the bound."""
    while not await condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


def quick(settings: dict[str, Any], sections: dict[str, Any] | None) -> dict[str, Any]:
    """The sections of a service on a broker, whose relay is quick; what `sections` say comes on top."""
    relay = {"polling_interval_seconds": 0.05, "retention_days": 0, "backoff_base_seconds": 0.05}
    given = sections or {}
    merged = {name: {**section, **given.get(name, {})} for name, section in (settings | {"outbox": relay}).items()}
    return {**given, **merged}
