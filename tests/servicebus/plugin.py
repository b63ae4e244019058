"""For the framework's own tests: each process of theirs has a double, named in the variables that they look at.

python -m pytest -p servicebus.plugin ...
"""

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from .double import Double, servicebus

_open = pytest.StashKey[ExitStack]()
_double = pytest.StashKey[Double]()


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if getattr(config.option, "numprocesses", None):
        return  # this one runs no tests: its workers do
    config.stash[_open] = stack = ExitStack()
    config.stash[_double] = double = stack.enter_context(servicebus())
    os.environ |= {
        "TEST_SERVICE_BUS__CONNECTION_STRING": double.connection_string,
        "TEST_SERVICE_BUS__MANAGEMENT_URL": f"http://127.0.0.1:{double.ports['administration']}",
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
    double = request.config.stash[_double]
    yield double
    double.clear_faults()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
