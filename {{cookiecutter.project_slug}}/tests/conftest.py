"""What the tests of this service share: the composed service, on a migrated database of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mailroom import Mailroom
from mailroom.testing import migrated

from {{ cookiecutter.package_name }}.app import create_mailroom
from {{ cookiecutter.package_name }}.settings import Settings

pytest_plugins = ["mailroom.testing.plugin"]


@pytest.fixture
def alembic_ini() -> Path:
    return Path(__file__).parents[1] / "alembic.ini"


@pytest.fixture
def settings(database_url: str) -> Settings:
    """Outbox and inbox are on, whatever settings.toml says; a module overrides the fixture to try something else."""
    return Settings.model_validate(
        {
            "database": {"url": database_url},
            "message_bus": {"provider": "in_process", "enable_outbox": True, "enable_inbox": True},
        }
    )


@pytest.fixture
async def mailroom(settings: Settings, alembic_ini: Path) -> AsyncIterator[Mailroom]:
    """What `harness` works on."""
    async with migrated(create_mailroom(settings), ini=alembic_ini) as mailroom:
        yield mailroom
