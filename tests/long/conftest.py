"""The framework's long tests: real processes on one database, killed and crowded. Run from the template's root.

`--kills N` kills that often in the crash test; `--chaos-kills N` in the chaos test, while `--chaos-events N` travel;
`--seed N` repeats a run whose seed was printed. They can be given as MAILROOM_KILLS, MAILROOM_CHAOS_KILLS and so on,
where pytest does not know these options yet.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from random import Random

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "{{cookiecutter.project_slug}}" / "src")]

import databases  # noqa: E402
from bus import SHOP, WAREHOUSE, Bus  # noqa: E402
from chaos import SKUS, Chaos, MakeChaos  # noqa: E402
from crew import Crew, Hire  # noqa: E402
from evidence import Evidence  # noqa: E402
from own_rabbitmq import OwnRabbitMQ, program  # noqa: E402

from mailroom.testing.plugin import fresh_database  # noqa: E402

TRIED = [kind for kind in databases.KINDS if kind != "sqlserver"]  # whose evidence speaks other SQL
KILLS = 104
"""Unless more are asked for: each named point three times or more in each posture, and some random moments."""
CHAOS_KILLS = 30
"""Unless more are asked for: each named point at least once."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mailroom")
    group.addoption("--kills", type=int, help=f"how many kills the crash test makes, {KILLS} at least")
    group.addoption("--chaos-events", type=int, help="how many events the chaos test commits")
    group.addoption("--chaos-kills", type=int, help=f"how many processes it kills, {CHAOS_KILLS} at least")
    group.addoption("--soak-events", type=int, help="how many events the soak on Azure Service Bus commits")
    group.addoption("--soak-kills", type=int, help="how many processes it kills")
    group.addoption("--seed", type=int, help="where the long tests' randomness starts")


def _option(config: pytest.Config, name: str, default: int) -> int:
    given = config.getoption(f"--{name}", None)
    return int(given if given is not None else os.environ.get(f"MAILROOM_{name.upper().replace('-', '_')}") or default)


@pytest.fixture(scope="session")
def kills(pytestconfig: pytest.Config) -> int:
    """How often the crash test kills, over all postures."""
    return max(KILLS, _option(pytestconfig, "kills", KILLS))


@pytest.fixture(scope="session")
def chaos_events(pytestconfig: pytest.Config) -> int:
    """How many events the chaos test commits."""
    return _option(pytestconfig, "chaos-events", 2_000)


@pytest.fixture(scope="session")
def chaos_kills(pytestconfig: pytest.Config) -> int:
    """How many processes the chaos test kills."""
    return max(CHAOS_KILLS, _option(pytestconfig, "chaos-kills", CHAOS_KILLS))


@pytest.fixture(scope="session")
def soak_events(pytestconfig: pytest.Config) -> int:
    """How many events the soak commits."""
    return _option(pytestconfig, "soak-events", 500)


@pytest.fixture(scope="session")
def soak_kills(pytestconfig: pytest.Config) -> int:
    """How many processes the soak kills."""
    return _option(pytestconfig, "soak-kills", 12)


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """Where a test's randomness starts. It is printed, and pytest shows it with a failure."""
    seed = _option(pytestconfig, "seed", random.randrange(2**32))
    print(f"\nseed {seed}: repeat with --seed {seed}, or MAILROOM_SEED={seed}")
    return seed


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    with Crew() as crew:
        yield crew


@pytest.fixture
def hire(crew: Crew) -> Iterator[Hire]:
    """`hire(3)`: three processes that run jobs. Whatever they still run at the end of the test is killed."""
    yield crew.hire
    crew.rest()


@pytest.fixture(params=TRIED)
def new_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Evidence]]:
    """`new_database()`: one with all tables, seen from outside the framework; of each kind in turn."""
    with ExitStack() as stack:
        numbers = count()

        def new_database() -> Evidence:
            folder = tmp_path / str(next(numbers))
            folder.mkdir()
            return Evidence.of_new_database(stack.enter_context(fresh_database(request.param, folder)), folder)

        yield new_database


@pytest.fixture(scope="module")
def node() -> Iterator[OwnRabbitMQ]:
    """A broker that a test may stop, kill and restart."""
    found = program()
    if found is None:
        if databases.is_required("rabbitmq"):
            pytest.fail("no rabbitmq-server is here: install it")
        pytest.skip("no rabbitmq-server is here")
    with OwnRabbitMQ(found) as node:
        yield node


@pytest.fixture
def make_chaos(tmp_path: Path, seed: int) -> Iterator[MakeChaos]:
    """`make_chaos(bus, events)`: on two databases of Postgres. It is over before the crew rests, since its threads
    listen to the crew."""
    with ExitStack() as stack:

        def make(bus: Bus, events: int) -> Chaos:
            databases = []
            for name in (SHOP, WAREHOUSE):
                folder = tmp_path / name
                folder.mkdir()
                url = stack.enter_context(fresh_database("postgres", folder))
                databases.append(Evidence.of_new_database(url, folder))
            chaos = Chaos(*databases, bus, events - events % len(SKUS), Random(seed))
            stack.callback(chaos.abandon)
            return chaos

        yield make


@pytest.fixture
def evidence(new_database: Callable[[], Evidence]) -> Evidence:
    return new_database()
