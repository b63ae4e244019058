"""Fixtures for pytest; name the plugin in the conftest.py of your tests:

    pytest_plugins = ["mailroom.testing.plugin"]

`harness` needs one fixture of yours, `mailroom`: the composed service, on a migrated database of its own.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mailroom.host import Mailroom
from mailroom.testing import databases
from mailroom.testing.clock import Clock
from mailroom.testing.harness import Harness


def fresh_database(kind: str, folder: Path) -> AbstractContextManager[str]:
    """As `databases.fresh`; where no server answers the test is skipped, or fails if TEST_REQUIRE lists the kind."""
    problem = databases.problem(kind)
    if problem and databases.is_required(kind):
        pytest.fail(problem, pytrace=False)
    if problem:
        pytest.skip(problem)
    return databases.fresh(kind, folder)


@pytest.fixture
def database_url(tmp_path: Path) -> Iterator[str]:
    """An empty database of the project's own kind that exists for one test."""
    with fresh_database(databases.PRESENT[0], tmp_path) as url:
        yield url


@pytest.fixture
def harness(mailroom: Mailroom) -> Iterator[Harness]:
    """The service of the fixture `mailroom`, in the hands of the test."""
    with Harness(mailroom) as harness:
        yield harness


@pytest.fixture
def clock(harness: Harness) -> Clock:
    """The clock that decides what is due, and when events happen."""
    return harness.clock
