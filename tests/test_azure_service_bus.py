"""What a project with Azure Service Bus has for it: Microsoft's emulator, settings, CI; and it works, on the double.

What is the same for every transport is in tests/test_transports.py.
"""

import asyncio
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from checkout import FRESH, PATH, SOMEBODY, ProjectOn, Render, run, succeed
from examples import COMBINATIONS, DATABASES, ODD
from pages import commands
from project_files import ci, compose, read, variables
from pydantic import SecretStr
from updating import Life, without_history
from walk import BIN

from mailroom.settings import ServiceBusSettings

if TYPE_CHECKING:
    from servicebus.double import Double

NAME = re.compile(r"[A-Za-z0-9](?:[\w./-]*[A-Za-z0-9])?")
SHORT_NAME_CHARACTERS = 50
WITH_IT = [name for name, answers in COMBINATIONS.items() if answers.get("transport") == "azure_service_bus"]
SECRET = "hunter2"
NOWHERE = f"Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=Root;SharedAccessKey={SECRET};UseDevelopmentEmulator=true"


def shop(project: Path, *arguments: str, **environment: str) -> Any:
    command = (sys.executable, "-c", "from shop.cli import main; main()", *arguments)
    return run(*command, cwd=project, env={**PATH, "PYTHONPATH": str(project / "src"), "COLUMNS": "200", **environment})


@pytest.fixture
def own_project(shop_on: ProjectOn, tmp_path: Path) -> Path:
    """A project that a test may work in, as it is after the first command of its README."""
    project = Path(shutil.copytree(shop_on("sqlite", "azure_service_bus"), tmp_path / "shop"))
    shutil.copy(project / ".env.example", project / ".env")
    return project


# The broker for development


@pytest.mark.parametrize("database", DATABASES)
def test_compose_yaml_has_the_form_that_compose_wants(shop_on: ProjectOn, database: str) -> None:
    project = shop_on(database, "azure_service_bus")
    succeed(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml", cwd=project)


def test_compose_yaml_has_that_form_with_odd_answers_too(by_copier: Render, tmp_path: Path) -> None:
    project = by_copier(tmp_path / "in", **ODD, transport="azure_service_bus")
    succeed(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml", cwd=project)


@pytest.mark.parametrize("database", DATABASES)
def test_the_emulator_is_pinned_configured_and_reached_from_this_machine_alone(
    shop_on: ProjectOn, database: str
) -> None:
    project = shop_on(database, "azure_service_bus")
    broker = compose(project)["services"]["broker"]
    assert re.fullmatch(r"mcr\.microsoft\.com/azure-messaging/servicebus-emulator:2\.\d+\.\d+", broker["image"])
    assert broker["environment"]["ACCEPT_EULA"] == "Y"
    assert broker["ports"] == ["127.0.0.1:5672:5672", "127.0.0.1:5300:5300"]
    (mounted,) = broker["volumes"]
    file, _, target = mounted.partition(":")
    assert target == "/ServiceBus_Emulator/ConfigFiles/Config.json:ro"
    assert (project / file).is_file()


@pytest.mark.parametrize("database", DATABASES)
def test_the_emulator_has_a_sql_server_and_shares_that_of_the_project(shop_on: ProjectOn, database: str) -> None:
    services = compose(shop_on(database, "azure_service_bus"))["services"]
    broker = services["broker"]
    keeper = services[broker["environment"]["SQL_SERVER"]]
    assert broker["depends_on"] == {broker["environment"]["SQL_SERVER"]: {"condition": "service_healthy"}}
    assert keeper["image"] == compose(shop_on("sqlserver"))["services"]["database"]["image"]
    assert keeper["environment"]["MSSQL_SA_PASSWORD"] == broker["environment"]["MSSQL_SA_PASSWORD"]
    assert keeper["healthcheck"]["test"][0] == "CMD"
    assert sum("mssql/server" in service["image"] for service in services.values()) == 1


def test_what_is_started_waits_for_the_emulator_whose_image_cannot_tell(shop_on: ProjectOn) -> None:
    services = compose(shop_on("sqlite", "azure_service_bus"))["services"]
    (watch,) = [service for service in services.values() if "http://broker:5300/health" in service_check(service)]
    assert "healthcheck" not in services["broker"]
    assert re.search(r":\d+\.\d+\.\d+$", watch["image"])


def service_check(service: dict[str, Any]) -> list[str]:
    return list(service.get("healthcheck", {}).get("test", []))


@pytest.mark.parametrize("database", DATABASES)
def test_settings_variables_and_broker_mean_the_same_broker(shop_on: ProjectOn, database: str) -> None:
    project = shop_on(database, "azure_service_bus")
    settings = tomllib.loads(read(project, "settings.toml"))
    given = variables(project)["SERVICE_BUS__CONNECTION_STRING"]
    here = ServiceBusSettings(connection_string=SecretStr(given))

    assert settings["message_bus"]["provider"] == "azure_service_bus"
    assert settings["message_bus"]["endpoint_prefix"] == "shop"
    assert settings["service_bus"] == {}
    assert here.is_emulator
    assert here.host == "127.0.0.1"
    shown = {line.split("#", 1)[1].strip() for line in read(project, "settings.toml").splitlines() if line[:1] == "#"}
    assert 'namespace = "shop.servicebus.windows.net"' in shown


@pytest.mark.parametrize("database", DATABASES)
def test_the_ci_of_a_project_wants_no_such_broker(shop_on: ProjectOn, database: str) -> None:
    """It is a service with a file of the project, and GitHub starts services before it has the project."""
    project = shop_on(database, "azure_service_bus")
    assert "broker" not in ci(project).get("services", {})
    assert ci(project).get("env", {}) == ({} if database == "sqlite" else {"TEST_REQUIRE": database})
    wanted = ",".join([*([] if database == "sqlite" else [database]), "azure_service_bus"])
    assert f"`TEST_REQUIRE={wanted}`" in read(project, "README.md")


# What the emulator is told


@pytest.fixture(scope="module", params=WITH_IT)
def told(request: pytest.FixtureRequest, by_copier: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of each combination that has the emulator. The longest names are too long for a rule."""
    return by_copier(tmp_path_factory.mktemp("told") / "in", **COMBINATIONS[request.param])


def parts(value: Any, key: str) -> Iterator[Any]:
    """Every value that has this key, however deep."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from parts(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from parts(inner, key)


def test_the_emulator_gets_what_the_sample_needs_within_its_limits(told: Path) -> None:
    """Its schema has one name for a namespace, 50 characters for others, 10 deliveries, and an hour for a message."""
    config = json.loads(read(told, "service-bus-emulator.json"))
    prefix = tomllib.loads(read(told, "settings.toml"))["message_bus"]["endpoint_prefix"]
    (events,) = (told / "src").glob("*/orders/events.py")
    (event,) = re.findall(r'IntegrationEvent, name="(.+)"', events.read_text(encoding="utf-8"))
    (namespace,) = config["UserConfig"]["Namespaces"]
    (queue,), (topic,) = namespace["Queues"], namespace["Topics"]
    (subscription,) = topic["Subscriptions"]
    (rule,) = subscription["Rules"]

    assert namespace["Name"] == "sbemulatorns"
    assert (queue["Name"], topic["Name"], subscription["Name"]) == (f"{prefix}.events", "mailroom.events", prefix)
    assert subscription["Properties"]["ForwardTo"] == queue["Name"]
    assert rule["Properties"] == {"FilterType": "Correlation", "CorrelationFilter": {"Label": event}}
    assert event.endswith(rule["Name"])
    assert all(NAME.fullmatch(name) for name in parts(config, "Name"))
    assert all(len(one["Name"]) <= SHORT_NAME_CHARACTERS for one in (subscription, rule))
    assert set(parts(config, "DefaultMessageTimeToLive")) == {"PT1H"}
    assert all(1 <= count <= 10 for count in parts(config, "MaxDeliveryCount"))
    assert not any(parts(config, "RequiresDuplicateDetection"))
    assert not any(parts(config, "RequiresSession"))


@pytest.mark.parametrize("told", [name for name in WITH_IT if "database" not in COMBINATIONS[name]], indirect=True)
def test_topology_export_prints_the_file_that_the_project_came_with(told: Path) -> None:
    """On SQLite, which needs no server; the database has no part in it."""
    package = next((told / "src").glob("*/orders")).parent.name
    command = (sys.executable, "-c", f"from {package}.cli import main; main()", "topology", "export")
    here = {"SERVICE_BUS__CONNECTION_STRING": variables(told)["SERVICE_BUS__CONNECTION_STRING"]}
    environment = {**PATH, "PYTHONPATH": str(told / "src"), **here}
    assert succeed(*command, cwd=told, env=environment) == read(told, "service-bus-emulator.json")


# At work


def test_outbox_inbox_and_consumer_are_on_because_of_the_transport(own_project: Path) -> None:
    said = shop(own_project, "posture").stdout
    assert "outbox: on (message_bus.enable_outbox is unset, and the transport is azure_service_bus)" in said
    assert "inbox: on (message_bus.enable_inbox is unset, and the transport is azure_service_bus)" in said
    assert "services: OutboxProcessor, OutboxCleanup, BrokerConsumer" in said


def test_the_demo_shows_events_go_over_the_broker(own_project: Path, own_double: "Double") -> None:
    done = shop(own_project, "demo", **own_double.variables)
    assert done.returncode == 0, done.stdout
    assert "3 orders committed; 3 rows wait in the outbox" in done.stdout
    assert "the relay published them to azure_service_bus, and the consumer of this service handled them" in done.stdout
    assert "rows in outbox_messages: 3 (3 processed); rows in inbox_messages: 3" in done.stdout
    left = own_double.held("shop.events")
    assert (left["active"], left["dead_letters"]) == (0, 0)


def test_the_demo_without_its_broker_is_one_clear_line(own_project: Path) -> None:
    nowhere = {"SERVICE_BUS__CONNECTION_STRING": NOWHERE, "SERVICE_BUS__MANAGEMENT_URL": "http://127.0.0.1:1"}
    done = shop(own_project, "demo", **nowhere)
    assert done.returncode == 1, done.stdout
    *before, error = done.stdout.splitlines()
    assert [line for line in before if "migrat" not in line] == []
    assert error.startswith("error: ")
    assert "127.0.0.1:1" in error
    assert "docker compose up -d --wait" in error
    assert SECRET not in done.stdout


def test_what_the_emulator_is_told_is_what_the_service_wants(own_project: Path, own_double: "Double") -> None:
    """It finds all of it there; what is there and different would be refused."""
    asyncio.run(make(json.loads(read(own_project, "service-bus-emulator.json")), own_double))
    shown = json.loads(shop(own_project, "topology", "show", "--json", **own_double.variables).stdout)
    assert shown["parts"]
    assert {part["state"] for part in shown["parts"]} == {"there"}
    assert shop(own_project, "demo", **own_double.variables).returncode == 0


async def make(config: dict[str, Any], double: "Double") -> None:
    """What the emulator makes of its configuration when it starts."""
    from azure.servicebus.management import CorrelationRuleFilter  # which takes a second, in every session

    (namespace,) = config["UserConfig"]["Namespaces"]
    async with double.administration() as administration:
        for queue in namespace["Queues"]:
            await administration.create_queue(queue["Name"], **limits(queue))
        for topic in namespace["Topics"]:
            await administration.create_topic(topic["Name"])
            for one in topic["Subscriptions"]:
                where = {"forward_to": one["Properties"]["ForwardTo"], **limits(one)}
                await administration.create_subscription(topic["Name"], one["Name"], **where)
                await administration.delete_rule(topic["Name"], one["Name"], "$Default")
                for rule in one["Rules"]:
                    takes = CorrelationRuleFilter(label=rule["Properties"]["CorrelationFilter"]["Label"])
                    await administration.create_rule(topic["Name"], one["Name"], rule["Name"], filter=takes)


def limits(entity: dict[str, Any]) -> dict[str, Any]:
    given = entity["Properties"]
    return {
        "lock_duration": given["LockDuration"],
        "max_delivery_count": given["MaxDeliveryCount"],
        "default_message_time_to_live": given["DefaultMessageTimeToLive"],
        "dead_lettering_on_message_expiration": given["DeadLetteringOnMessageExpiration"],
    }


def test_as_a_monolith_it_needs_no_broker(own_project: Path) -> None:
    done = shop(own_project, "demo", SERVICE_BUS__CONNECTION_STRING=NOWHERE, MESSAGE_BUS__PROVIDER="in_process")
    assert done.returncode == 0, done.stdout
    assert "3 orders committed; 0 rows wait in the outbox" in done.stdout


def test_its_tests_need_no_broker(own_project: Path) -> None:
    """Nor do they read the settings of the machine: those name a broker that is not there."""
    environment = {**PATH, "PYTHONPATH": str(own_project / "src"), "SERVICE_BUS__CONNECTION_STRING": NOWHERE}
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ignore=tests/mailroom")
    assert " passed" in succeed(*command, cwd=own_project, env=environment)


def test_it_passes_the_tests_of_its_framework_that_need_the_broker(
    lives: Callable[[str], Life], own_double: "Double", tmp_path: Path
) -> None:
    """After an update, in the environment of the template; tests/test_updated_projects.py says who runs the others.

    Those of commands are left to `make test-framework`: they take minutes, and nothing in them depends on a project.
    """
    project = without_history(lives("longest with azure_service_bus").updated, tmp_path)
    variables = {"TEST_REQUIRE": "azure_service_bus", **own_double.variables_of_tests}
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    environment = {**PATH, "PYTHONPATH": str(project / "src"), **variables}
    succeed(*command, "--collect-only", "tests/mailroom", cwd=project, env=environment)
    files = [f"tests/mailroom/test_{name}.py" for name in ("transport", "service_bus_transport", "service_bus_wire")]
    assert " passed" in succeed(*command, "-n", "2", *files, cwd=project, env=environment)


def test_uv_runs_what_its_readme_says_in_a_fresh_environment(own_project: Path, own_double: "Double") -> None:
    """On the double, instead of the containers."""
    shown = commands(own_project / "README.md", "See it work")
    assert "docker compose up -d --wait" in shown
    environment = {**FRESH, **SOMEBODY, "COLUMNS": "200", **own_double.variables}
    said = [
        succeed("sh", "-c", command, cwd=own_project, env=environment)
        for command in shown
        if not command.startswith("docker ")
    ]
    assert sum("the relay published them to azure_service_bus" in output for output in said) == 1
    assert not list(own_project.glob(".venv/lib/*/site-packages/aio_pika"))
