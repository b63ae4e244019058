"""What a project has of its transport, and nothing of another: module, client, settings, broker, CI; and it works.

A broker is asked for by the fixture `own_names`: without one a test is skipped, unless TEST_REQUIRE names rabbitmq.
"""

import re
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from brokers import HERE, OwnNames
from checkout import FRESH, PATH, SOMEBODY, ProjectOn, Render, run, succeed
from examples import DATABASES, ODD, TRANSPORTS
from pages import commands
from project_files import SPEAK_OF_IT, ci, compose, read, variables
from tls import tls_before
from walk import BIN

CLIENTS = {
    "in_process": set[str](),
    "rabbitmq": {"aio-pika", "aiormq", "pamqp", "yarl"},
    "azure_service_bus": {"azure-servicebus", "azure-identity", "aiohttp"},
}
WORDS = {"in_process": "$^", "rabbitmq": r"rabbit|amqp", "azure_service_bus": r"azure|service.?bus"}
SECRET = "hunter2"
NOWHERE = f"amqp://guest:{SECRET}@127.0.0.1:1/"
PORTS = ["127.0.0.1:5672:5672", "127.0.0.1:15672:15672"]


def shop(project: Path, *arguments: str, **environment: str) -> Any:
    command = (sys.executable, "-c", "from shop.cli import main; main()", *arguments)
    return run(*command, cwd=project, env={**PATH, "PYTHONPATH": str(project / "src"), "COLUMNS": "200", **environment})


@pytest.fixture
def own_project(shop_on: ProjectOn, tmp_path: Path) -> Path:
    """A project with rabbitmq that a test may work in, as it is after the first command of its README."""
    project = Path(shutil.copytree(shop_on("sqlite", "rabbitmq"), tmp_path / "shop"))
    shutil.copy(project / ".env.example", project / ".env")
    return project


# What is there


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("database", DATABASES)
def test_a_project_holds_the_parts_of_its_transport_and_of_no_other(
    shop_on: ProjectOn, database: str, transport: str
) -> None:
    project = shop_on(database, transport)
    found = {path.stem for path in (project / "src/mailroom/messaging/transports").iterdir()}
    assert found == {"__init__", "base", "in_process", transport}
    assert bool(list((project / "tests/mailroom").glob("*rabbitmq*.py"))) <= (transport == "rabbitmq")
    assert bool(list((project / "tests/mailroom").glob("*service_bus*.py"))) <= (transport == "azure_service_bus")
    assert not list((project / "tests/mailroom").glob("*service_bus_faults.py"))
    dependencies = tomllib.loads(read(project, "pyproject.toml"))["project"]["dependencies"]
    installed = {re.match(r"[\w-]+", line)[0] for line in dependencies}  # type: ignore[index]
    assert installed & set().union(*CLIENTS.values()) == CLIENTS[transport]
    assert (project / "compose.yaml").exists() == (database != "sqlite" or transport != "in_process")
    assert (project / "service-bus-emulator.json").exists() == (transport == "azure_service_bus")


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("name", SPEAK_OF_IT)
def test_what_a_user_reads_speaks_of_no_broker_but_its_own(
    shop_on: ProjectOn, database: str, transport: str, name: str
) -> None:
    others = "|".join(words for kind, words in WORDS.items() if kind != transport)
    assert re.findall(others, read(shop_on(database, transport), name), re.IGNORECASE) == []


@pytest.mark.parametrize("transport", TRANSPORTS[1:])
def test_a_provider_that_is_not_in_the_project_is_refused_with_the_command_that_brings_it(
    shop_on: ProjectOn, transport: str
) -> None:
    refused = shop(shop_on("sqlite"), "run", MESSAGE_BUS__PROVIDER=transport)
    assert refused.returncode == 2
    (line,) = refused.stdout.splitlines()
    assert line.startswith(f"error: message_bus.provider is {transport!r}")
    assert line.endswith(f"Run: copier update --data transport={transport}")


# The broker for development


@pytest.mark.parametrize("answers", [{}, ODD], ids=["defaults", "odd"])
@pytest.mark.parametrize("database", DATABASES)
def test_compose_yaml_has_the_form_that_compose_wants(
    by_copier: Render, tmp_path: Path, database: str, answers: dict[str, str]
) -> None:
    project = by_copier(tmp_path / "in", **answers, database=database, transport="rabbitmq")
    succeed(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml", cwd=project)


@pytest.mark.parametrize("database", DATABASES)
def test_the_broker_is_pinned_watched_kept_and_reached_from_this_machine_alone(
    shop_on: ProjectOn, database: str
) -> None:
    described = compose(shop_on(database, "rabbitmq"))
    broker = described["services"]["broker"]
    assert re.fullmatch(r"rabbitmq:4\.\d+\.\d+-management", broker["image"])
    assert broker["hostname"] == "broker"
    assert broker["healthcheck"]["test"][0] == "CMD"
    assert broker["ports"] == PORTS
    assert broker["volumes"] == ["broker:/var/lib/rabbitmq"]
    expected = {"broker"} if database == "sqlite" else {"broker", "database"}
    assert set(described["services"]) == set(described["volumes"]) == expected


def test_a_broker_without_a_password_is_refused_with_what_to_do(shop_on: ProjectOn) -> None:
    said = read(shop_on("sqlite", "rabbitmq"), "compose.yaml")
    assert said.count(":?copy .env.example to .env}") == 2


@pytest.mark.parametrize("database", DATABASES)
def test_settings_variables_broker_ci_and_tests_mean_the_same_broker(shop_on: ProjectOn, database: str) -> None:
    project = shop_on(database, "rabbitmq")
    settings = tomllib.loads(read(project, "settings.toml"))
    checked_in, with_password = urlsplit(settings["rabbitmq"]["url"]), urlsplit(variables(project)["RABBITMQ__URL"])
    service, in_ci = compose(project)["services"]["broker"], ci(project)["services"]["broker"]

    assert settings["message_bus"]["provider"] == "rabbitmq"
    assert settings["message_bus"]["endpoint_prefix"] == "shop"
    assert checked_in.password is None
    assert (checked_in.hostname, checked_in.port) == (with_password.hostname, with_password.port)
    assert with_password.geturl() == HERE
    login = {"RABBITMQ_DEFAULT_USER": with_password.username, "RABBITMQ_DEFAULT_PASS": with_password.password}
    assert service["environment"] == in_ci["env"] == login
    assert checked_in.username == with_password.username
    assert in_ci["image"] == service["image"]
    assert in_ci["ports"] == service["ports"]
    assert "--health-cmd" in in_ci["options"]
    management = urlsplit(variables(project)["RABBITMQ__MANAGEMENT_URL"])
    assert management.netloc == f"{with_password.username}:{with_password.password}@127.0.0.1:15672"


@pytest.mark.parametrize("database", DATABASES)
def test_the_ci_of_a_project_requires_the_servers_that_it_has(shop_on: ProjectOn, database: str) -> None:
    project = shop_on(database, "rabbitmq")
    servers = [*([] if database == "sqlite" else [database]), "rabbitmq"]
    assert ci(project)["env"] == {"TEST_REQUIRE": ",".join(servers)}
    assert f"`TEST_REQUIRE={','.join(servers)}`" in read(project, "README.md")


# At work


def test_outbox_inbox_and_consumer_are_on_because_of_the_transport(own_project: Path) -> None:
    said = shop(own_project, "posture").stdout
    assert "outbox: on (message_bus.enable_outbox is unset, and the transport is rabbitmq)" in said
    assert "inbox: on (message_bus.enable_inbox is unset, and the transport is rabbitmq)" in said
    assert "services: OutboxProcessor, OutboxCleanup, BrokerConsumer" in said


def test_the_demo_shows_events_go_over_the_broker(own_project: Path, own_names: OwnNames) -> None:
    done = shop(own_project, "demo", **own_names.variables())
    assert done.returncode == 0, done.stdout
    assert "3 orders committed; 3 rows wait in the outbox" in done.stdout
    assert "the relay published them to rabbitmq, and the consumer of this service handled them" in done.stdout
    assert "rows in outbox_messages: 3 (3 processed); rows in inbox_messages: 3" in done.stdout
    assert own_names.count("shop", "events") == own_names.count("shop", "dead-letters") == 0


def test_the_demo_without_its_broker_is_one_clear_line(own_project: Path) -> None:
    done = shop(own_project, "demo", RABBITMQ__URL=NOWHERE)
    assert done.returncode == 1
    *before, error = done.stdout.splitlines()
    assert [line for line in before if "migrat" not in line] == []
    assert error.startswith("error: amqp://guest@127.0.0.1:1/ cannot be reached")
    assert "docker compose up -d --wait" in error
    assert SECRET not in done.stdout


def test_over_tls_the_certificate_is_checked(own_project: Path, own_names: OwnNames, tmp_path: Path) -> None:
    variables = own_names.variables()
    with tls_before(own_names.url, tmp_path) as (url, certificate):
        done = shop(own_project, "demo", **{**variables, "RABBITMQ__URL": f"{url}?cafile={certificate}"})
        assert done.returncode == 0, done.stdout
        assert "rows in outbox_messages: 3 (3 processed); rows in inbox_messages: 3" in done.stdout
        refused = shop(own_project, "demo", **{**variables, "RABBITMQ__URL": url})
    assert refused.returncode == 1
    error = refused.stdout.splitlines()[-1]
    assert "certificate verify failed" in error
    assert "guest:guest" not in refused.stdout


def test_a_queue_that_is_there_with_other_arguments_is_one_clear_line(own_project: Path, own_names: OwnNames) -> None:
    variables = own_names.variables()
    assert shop(own_project, "demo", **variables).returncode == 0
    done = shop(own_project, "demo", **variables, RABBITMQ__DELIVERY_LIMIT="10")
    assert done.returncode == 2
    assert len(done.stdout.splitlines()) == 3
    assert f"error: the queue {own_names.name}.shop.events is on the broker already" in done.stdout


def test_as_a_monolith_it_needs_no_broker(own_project: Path) -> None:
    done = shop(own_project, "demo", RABBITMQ__URL=NOWHERE, MESSAGE_BUS__PROVIDER="in_process")
    assert done.returncode == 0, done.stdout
    assert "3 orders committed; 0 rows wait in the outbox" in done.stdout


def test_its_tests_need_no_broker(own_project: Path) -> None:
    """Nor do they read the settings of the machine: those name a broker that is not there."""
    environment = {**PATH, "PYTHONPATH": str(own_project / "src"), "RABBITMQ__URL": NOWHERE}
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ignore=tests/mailroom")
    assert " passed" in succeed(*command, cwd=own_project, env=environment)


def test_uv_runs_what_its_readme_says_in_a_fresh_environment(own_project: Path, own_names: OwnNames) -> None:
    """On the broker that is here, instead of the container."""
    shown = commands(own_project / "README.md", "See it work")
    assert "docker compose up -d --wait" in shown
    environment = {**FRESH, **SOMEBODY, "COLUMNS": "200", **own_names.variables()}
    said = [
        succeed("sh", "-c", command, cwd=own_project, env=environment)
        for command in shown
        if not command.startswith("docker ")
    ]
    assert sum("the relay published them to rabbitmq" in output for output in said) == 1
    assert not list(own_project.glob(".venv/lib/*/site-packages/asyncpg"))
