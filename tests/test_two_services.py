"""Two projects of the template exchange events over a broker, as processes of their own (docs/two-services.md).

The page's commands are walked through; what runs until it is stopped is started here. The page is about RabbitMQ: for
Azure Service Bus another answer is given, and what only that broker says is not compared.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from brokers import OwnNames
from checkout import ROOT
from pages import blocks
from walk import BIN, Walk, command_folder, shell, shows

if TYPE_CHECKING:
    from servicebus.double import Double

PAGE = ROOT / "docs" / "two-services.md"
PATIENCE_SECONDS = 60
MAKING, WRITING = "Make both", ("What shipping wants to know", "What shop wants to know")
SERVICES = ("shop", "shipping")


class Running:
    """`<service> run`, and what it has logged so far."""

    def __init__(self, service: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._log = folder / "run.log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [service, "run"], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def said(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.said or self.process.poll() is not None)
        assert text in self.said, self.said


@contextmanager
def running(service: str, home: Path, walk: Walk) -> Iterator[Running]:
    """From when it says that it runs. Ends with a signal, and in good order."""
    folder = home / service
    one = Running(service, folder, {**os.environ, **walk.environment, "PYTHONPATH": str(folder / "src")})
    try:
        one.wait_for("running")
        yield one
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(PATIENCE_SECONDS) == 0, one.said
    finally:
        one.process.kill()
        one.process.wait()


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Between(Protocol):
    """A broker, as two services and this test see it."""

    transport: str

    def variables(self) -> dict[str, str]:
        """What leads a service there."""

    def prefix(self, service: str) -> str: ...

    def as_on_the_page(self, said: str) -> str: ...

    def count(self, service: str, what: str) -> int: ...


class OverRabbitMQ:
    transport = "rabbitmq"

    def __init__(self, own_names: OwnNames) -> None:
        self._names = own_names
        self.count = own_names.count

    def variables(self) -> dict[str, str]:
        variables = self._names.variables()
        del variables["MESSAGE_BUS__ENDPOINT_PREFIX"]  # it is each project's own
        return variables

    def prefix(self, service: str) -> str:
        return self._names.variables(service)["MESSAGE_BUS__ENDPOINT_PREFIX"]

    def as_on_the_page(self, said: str) -> str:
        said = said.replace(self._names.exchange, "mailroom.events").replace(f"{self._names.name}.", "")
        return re.sub(r"broker=\S+", "broker=amqp://guest@127.0.0.1:5672/", said)


class OverServiceBus:
    """The double is this test's alone, so the names are those that a project has by itself."""

    transport = "azure_service_bus"

    def __init__(self, double: "Double") -> None:
        self._double = double

    def variables(self) -> dict[str, str]:
        return {
            "SERVICE_BUS__CONNECTION_STRING": self._double.connection_string,
            "SERVICE_BUS__MANAGEMENT_URL": f"http://127.0.0.1:{self._double.ports['administration']}",
        }

    def prefix(self, service: str) -> str:
        return service

    def as_on_the_page(self, said: str) -> str:
        return said

    def count(self, service: str, what: str) -> int:
        held = self._double.held(f"{service}.events")
        return int(held["active" if what == "events" else "dead_letters"])


@pytest.fixture(params=["rabbitmq", "azure_service_bus"])
def between(request: pytest.FixtureRequest) -> Between:
    if request.param == "rabbitmq":
        return OverRabbitMQ(request.getfixturevalue("own_names"))
    return OverServiceBus(request.getfixturevalue("double"))


@pytest.fixture
def page(between: Between, tmp_path: Path) -> Path:
    """The page, with the other answer where another one is needed."""
    text = PAGE.read_text(encoding="utf-8").replace("transport=rabbitmq", f"transport={between.transport}")
    (tmp_path / PAGE.name).write_text(text, encoding="utf-8")
    return tmp_path / PAGE.name


@pytest.fixture
def walk(template: Path, engines_home: dict[str, str], between: Between, tmp_path: Path) -> Walk:
    """A reader in an empty folder, whose shell knows the broker."""
    (tmp_path / "work").mkdir()
    return Walk(
        tmp_path / "work",
        {
            **engines_home,
            **shell(command_folder(tmp_path / "bin", *SERVICES), BIN),
            **between.variables(),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{template}.insteadOf",
            "GIT_CONFIG_VALUE_0": "https://github.com/org/cookiecutter-mailroom.git",
        },
    )


@pytest.fixture
def made(walk: Walk, page: Path, between: Between) -> Path:
    """The folder with both projects, as the page makes them; each has queues of its own."""
    home = walk.folder
    walk.take(page, lambda heading: heading == MAKING)
    for service in SERVICES:
        with (home / service / ".env").open("a", encoding="utf-8") as env:
            env.write(f"MESSAGE_BUS__ENDPOINT_PREFIX={between.prefix(service)}\n")
    walk.take(page, lambda heading: heading in WRITING)
    return home


def test_an_order_of_one_service_is_a_shipment_of_the_other(
    walk: Walk, made: Path, page: Path, between: Between
) -> None:
    with running("shop", made, walk) as shop:
        with running("shipping", made, walk):
            walk.take(page, lambda heading: heading == "Place an order")
            shop.wait_for("order is on its way")
            walk.take(page, lambda heading: heading == "Look")

        walk.folder = made / "shop"
        walk.take(page, lambda heading: heading == "Place an order")
        until(lambda: between.count("shipping", "events") == 1)
        with running("shipping", made, walk):
            until(lambda: shop.said.count("order is on its way") == 2)
        walk.folder = made / "shipping"
        walk.take(page, lambda heading: heading == "One of them is away")

    said = between.as_on_the_page(shop.said)
    shown = [block.text for block in blocks(page.read_text(encoding="utf-8"), page.name) if block.language == "text"]
    assert len(shown) == 2
    for lines in shown if between.transport == "rabbitmq" else shown[1:]:
        assert shows(said, ["...", *lines.splitlines(), "..."]), said
    assert "Traceback" not in said
    assert [between.count(service, "dead-letters") for service in SERVICES] == [0, 0]
