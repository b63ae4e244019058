"""Composes mailrooms on a database of their own."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import support
from support import Compose

from mailroom import Handlers, Mailroom, Settings


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    return f"sqlite+aiosqlite:///{tmp_path / 'bank.db'}"


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
