"""Composes mailrooms on a database of their own, and projects whose migrations are mailroom's."""

import logging
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import databases
import hypothesis
import pytest
import pytest_asyncio
import structlog
import support
from support import Broker, Compose

from mailroom import Handlers, Mailroom, Settings
from mailroom.persistence import schema
from mailroom.testing.plugin import fresh_database

# What a machine is slow at depends on what else it does, so a slow example says nothing about the code.
hypothesis.settings.register_profile("mailroom", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("mailroom")

MIGRATIONS = Path(__file__).parents[2] / "migrations"


@pytest.fixture(params=databases.KINDS)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh database, of each kind in turn."""
    with fresh_database(request.param, tmp_path) as url:
        yield url


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Commands configure the logging of their process, which is that of the next test, too."""
    changed = [logging.getLogger(name) for name in (None, "alembic", "aiosqlite")]
    levels = [logger.level for logger in changed]
    handlers = logging.getLogger().handlers
    yield
    logging.getLogger().handlers = handlers
    for logger, level in zip(changed, levels, strict=True):
        logger.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def alembic_ini(tmp_path: Path) -> Path:
    """Of a project in a folder of its own, with the migrations and the tables of mailroom and no others."""
    (tmp_path / "migrations" / "versions").mkdir(parents=True)
    for name in ("env.py", "script.py.mako", "versions/0001_initial.py"):
        shutil.copy(MIGRATIONS / name, tmp_path / "migrations" / name)
    ini = tmp_path / "alembic.ini"
    ini.write_text(
        "[alembic]\nscript_location = %(here)s/migrations\npath_separator = os\n"
        "[mailroom]\nmodels = mailroom.persistence.tables:MailroomBase.metadata\n",
        encoding="utf-8",
    )
    schema.take_steps(ini=ini)
    return ini


@pytest_asyncio.fixture
async def compose(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Compose]:
    """`await compose(handlers, outbox=True, inbox=None, **more)`: a mailroom whose tables exist.

    `message_bus`, `database` and the other sections go to the settings; what else is given goes to Mailroom.
    """
    monkeypatch.chdir(tmp_path)
    made: list[Mailroom] = []

    async def compose(
        *handlers: Handlers, outbox_on: bool | None = None, inbox_on: bool | None = None, **more: Any
    ) -> Mailroom:
        sections = {name: more.pop(name) for name in tuple(more) if name in Settings.model_fields}
        sections["database"] = {"url": database_url, **sections.get("database", {})}
        sections["message_bus"] = {
            "enable_outbox": outbox_on,
            "enable_inbox": inbox_on,
            **sections.get("message_bus", {}),
        }
        mailroom = Mailroom(Settings(**sections), handlers=handlers, **more)
        made.append(mailroom)
        await support.create_tables(mailroom)
        return mailroom

    yield compose
    for mailroom in made:
        await mailroom.close()


@pytest.fixture
def compose_with(compose: Compose) -> Callable[..., Awaitable[Mailroom]]:
    """`compose_with(broker, *handlers)`: over this stand-in for a broker, quick to try again."""
    quick = {"retry_min_interval_seconds": 0.001, "retry_max_interval_seconds": 0.002}

    async def compose_with(broker: Broker, *handlers: Handlers, **sections: Any) -> Mailroom:
        bus = {"provider": "stand_in", **quick, **sections.pop("message_bus", {})}
        return await compose(*handlers, message_bus=bus, transports={"stand_in": broker}, **sections)

    return compose_with


@pytest.fixture
def shop() -> Iterator[Any]:
    """A service on a real RabbitMQ, in projects that have that transport."""
    from rabbitmq_broker import fresh_shop

    with fresh_shop() as shop:
        yield shop


@pytest.fixture
def api() -> Iterator[Any]:
    """A management API of RabbitMQ, in projects that have that transport."""
    from rabbitmq_management import Api

    with Api.running() as api:
        yield api


@pytest.fixture
def broker() -> Iterator[Any]:
    """A real RabbitMQ, under names that no other test has, in projects that have that transport."""
    import rabbitmq_support

    with rabbitmq_support.broker() as own:
        yield own


@pytest.fixture
def run(compose: Compose, broker: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`async with run(handlers, sections={"rabbitmq": ...}, **bus) as mailroom`, on `broker`."""
    from rabbitmq_support import composed

    return _running(partial(composed, compose, broker), monkeypatch)


@pytest.fixture
def bus() -> Iterator[Any]:
    """A namespace of Azure Service Bus, under names that no other test has, in projects that have that transport."""
    import service_bus_support

    with service_bus_support.bus() as own:
        yield own


@pytest.fixture
def run_on_bus(compose: Compose, bus: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """As `run`, on `bus`."""
    from service_bus_support import composed

    return _running(partial(composed, compose, bus), monkeypatch)


def _running(composed: Callable[..., Awaitable[Mailroom]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    async def is_migrated(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr("mailroom.host.ensure_migrated", is_migrated)

    @asynccontextmanager
    async def running(
        *handlers: Handlers, sections: dict[str, Any] | None = None, **bus: Any
    ) -> AsyncIterator[Mailroom]:
        async with (await composed(*handlers, sections=sections, **bus)).running() as mailroom:
            yield mailroom

    return running
