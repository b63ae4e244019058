"""Two projects of the template exchange events over RabbitMQ, as processes of their own (docs/two-services.md).

The page's commands are walked through; what runs until it is stopped is started here.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from brokers import OwnNames
from checkout import ROOT
from pages import blocks
from walk import BIN, Walk, command_folder, shell, shows

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


@pytest.fixture
def walk(template: Path, engines_home: dict[str, str], own_names: OwnNames, tmp_path: Path) -> Walk:
    """A reader in an empty folder, whose shell knows the broker under names of its own."""
    (tmp_path / "work").mkdir()
    variables = own_names.variables()
    del variables["MESSAGE_BUS__ENDPOINT_PREFIX"]  # it is each project's own
    return Walk(
        tmp_path / "work",
        {
            **engines_home,
            **shell(command_folder(tmp_path / "bin", *SERVICES), BIN),
            **variables,
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{template}.insteadOf",
            "GIT_CONFIG_VALUE_0": "https://github.com/org/cookiecutter-mailroom.git",
        },
    )


@pytest.fixture
def made(walk: Walk, own_names: OwnNames) -> Path:
    """The folder with both projects, as the page makes them; each has queues of its own."""
    home = walk.folder
    walk.take(PAGE, lambda heading: heading == MAKING)
    for service in SERVICES:
        prefix = own_names.variables(service)["MESSAGE_BUS__ENDPOINT_PREFIX"]
        with (home / service / ".env").open("a", encoding="utf-8") as env:
            env.write(f"MESSAGE_BUS__ENDPOINT_PREFIX={prefix}\n")
    walk.take(PAGE, lambda heading: heading in WRITING)
    return home


def test_an_order_of_one_service_is_a_shipment_of_the_other(walk: Walk, made: Path, own_names: OwnNames) -> None:
    with running("shop", made, walk) as shop:
        with running("shipping", made, walk):
            walk.take(PAGE, lambda heading: heading == "Place an order")
            shop.wait_for("order is on its way")
            walk.take(PAGE, lambda heading: heading == "Look")

        walk.folder = made / "shop"
        walk.take(PAGE, lambda heading: heading == "Place an order")
        until(lambda: own_names.count("shipping", "events") == 1)
        with running("shipping", made, walk):
            until(lambda: shop.said.count("order is on its way") == 2)
        walk.folder = made / "shipping"
        walk.take(PAGE, lambda heading: heading == "One of them is away")

    said = shop.said.replace(own_names.exchange, "mailroom.events").replace(f"{own_names.name}.", "")
    said = re.sub(r"broker=\S+", "broker=amqp://guest@127.0.0.1:5672/", said)
    shown = [block.text for block in blocks(PAGE.read_text(encoding="utf-8"), PAGE.name) if block.language == "text"]
    assert len(shown) == 2
    for lines in shown:
        assert shows(said, ["...", *lines.splitlines(), "..."]), said
    assert [own_names.count(service, "dead-letters") for service in SERVICES] == [0, 0]
