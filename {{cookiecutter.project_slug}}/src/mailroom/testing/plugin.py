"""Fixtures for pytest; name the plugin in the conftest.py of your tests:

    pytest_plugins = ["mailroom.testing.plugin"]

`harness` needs one fixture of yours, `mailroom`: the composed service, on a migrated database of its own.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mailroom.host import Mailroom
from mailroom.testing.clock import Clock
from mailroom.testing.harness import Harness


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """A database that exists for one test."""
    return f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def harness(mailroom: Mailroom) -> Iterator[Harness]:
    """The service of the fixture `mailroom`, in the hands of the test."""
    with Harness(mailroom) as harness:
        yield harness


@pytest.fixture
def clock(harness: Harness) -> Clock:
    """The clock that decides what is due, and when events happen."""
    return harness.clock
