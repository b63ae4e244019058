"""What the tests of this service share: a mailroom on a migrated database of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailroom import Mailroom
from mailroom.persistence import schema

from {{ cookiecutter.package_name }}.app import create_mailroom
from {{ cookiecutter.package_name }}.settings import Settings


@pytest.fixture
def alembic_ini() -> Path:
    return Path(__file__).parents[1] / "alembic.ini"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings that depend on nothing but this file; a module overrides the fixture to turn something on."""
    return Settings.model_validate({"database": {"url": f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"}})


@pytest.fixture
async def mailroom(settings: Settings, alembic_ini: Path) -> AsyncIterator[Mailroom]:
    """The composed service, on an empty database at the newest migration."""
    mailroom = create_mailroom(settings)
    await schema.upgrade(mailroom.database.engine, ini=alembic_ini)
    yield mailroom
    await mailroom.close()
