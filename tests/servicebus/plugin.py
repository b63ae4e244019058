"""For the framework's own tests: each process of theirs has a double, named in the variables that they look at.

    python -m pytest -p servicebus.plugin ...

With TEST_SERVICEBUS_CONNECTION_STRING in the environment they run against what that names, and there is no double.
"""

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from .double import Double, servicebus

CONNECTION_STRING = "TEST_SERVICEBUS_CONNECTION_STRING"

_open = pytest.StashKey[ExitStack]()
_double = pytest.StashKey[Double]()


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if getattr(config.option, "numprocesses", None):
        return  # this one runs no tests: its workers do
    if os.environ.get(CONNECTION_STRING):
        return
    config.stash[_open] = stack = ExitStack()
    config.stash[_double] = double = stack.enter_context(servicebus())
    os.environ |= {
        **double.variables_of_tests,
        "TEST_REQUIRE": ",".join(filter(None, (os.environ.get("TEST_REQUIRE"), "azure_service_bus"))),
    }


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _open in session.config.stash:
        session.config.stash[_open].close()


@pytest.fixture
def double(request: pytest.FixtureRequest) -> Iterator[Double]:
    """The double of this process; it does nothing wrong before and after.

    The client does not close the socket of a connection that fails. Such sockets are collected here, where that is
    known, and not while some other test runs.
    """
    if _double not in request.config.stash:
        pytest.skip(f"it needs the double, and {CONNECTION_STRING} names something else")
    double = request.config.stash[_double]
    yield double
    double.clear_faults()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
