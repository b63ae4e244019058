"""A shop of which only the command line and the broker are looked at, whichever broker that is."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Generic, Protocol, TypeVar

import databases
import pytest
from click.testing import Result
from pydantic import SecretStr
from typer.testing import CliRunner

from mailroom import Context, Handlers, IntegrationEvent, Mailroom, Reject, Settings
from mailroom.checks import Check, Status
from mailroom.cli import create_cli
from mailroom.errors import ConfigurationError
from mailroom.messaging.attempts import Failure, Journey
from mailroom.messaging.transports.base import Broker, Transport
from mailroom.persistence.engines import check_present
from mailroom.settings import DatabaseSettings
from mailroom.testing.databases import is_required

NOWHERE = {
    "sqlite": "sqlite:////no/such/folder/shop.db",
    "postgres": "postgresql://nobody@127.0.0.1:1/shop",
    "sqlserver": "mssql://nobody@127.0.0.1:1/shop",
}
"""Databases that are not there: what is done on a broker asks none."""

JOURNEY = Journey(first_seen=datetime(2026, 1, 31, tzinfo=UTC), attempts=6, redeliveries=3)
FAILURE = Failure.of(Reject("honey is sold out"))
"""What a message that is given up has been through, and why it is."""


class BrokerTransport(Transport, Broker, Protocol):
    """What every transport over a broker is."""


T = TypeVar("T")
Over = TypeVar("Over", bound=BrokerTransport)


class Placed(IntegrationEvent, name="shop.order-placed"):
    sku: str


handlers = Handlers()


@handlers.on(Placed)
async def reserve(event: Placed, context: Context[Any]) -> None: ...


class BrokerShop(Generic[Over]):
    """Its name is its prefix as well. `sections` says which broker it is on."""

    def __init__(self, name: str, transport: type[Over], sections: dict[str, Any]) -> None:
        self.name = name
        self.handlers: list[Handlers] = [handlers]
        self.sections: dict[str, Any] = {"database": {"url": NOWHERE[databases.KINDS[0]]}, **sections}
        self.app = create_cli("shop", settings=self.settings, mailroom=self.compose)
        self._transport = transport

    def settings(self) -> Settings:
        return Settings(**self.sections)

    def compose(self) -> Mailroom:
        return Mailroom(self.settings(), handlers=self.handlers, command="shop")

    def __call__(self, *arguments: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(self.app, arguments, env={"COLUMNS": "300"}, input=answer)

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)

    def states(self) -> dict[str, str]:
        """How each part of the topology fares, by its name."""
        return {part["name"]: part["state"] for part in self.json("topology", "show")["parts"]}

    def examined(self) -> dict[str, Check]:
        """What `doctor` says about the broker."""

        async def examine(transport: Over) -> dict[str, Check]:
            return {check.name: check async for check in transport.examine("shop")}

        return self.on_transport(examine)

    def on_transport(self, work: Callable[[Over], Awaitable[T]]) -> T:
        async def run() -> T:
            service = self.compose()
            assert isinstance(service.transport, self._transport)
            try:
                return await work(service.transport)
            finally:
                await service.transport.stop()
                await service.close()

        return asyncio.run(run())


def not_ok(checks: dict[str, Check]) -> dict[str, Status]:
    return {name: check.status for name, check in checks.items() if check.status is not Status.OK}


def need_driver() -> None:
    """Skips the test where no driver of the project's database is there: a service loads that."""
    kind = databases.KINDS[0]
    try:
        check_present(DatabaseSettings(url=SecretStr(NOWHERE[kind])))
    except ConfigurationError as error:
        if is_required(kind):
            raise
        pytest.skip(str(error))
