"""What a project has of its database, and nothing of another: files, driver, settings, server, CI, image; and it works.

A server is asked for by `mailroom.testing`: without one a test is skipped, unless TEST_REQUIRE names it.
"""

import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from brokers import OwnNames
from checkout import FRESH, PATH, SOMEBODY, ProjectOn, Render, run, succeed
from examples import DATABASES, ODD
from pages import commands
from project_files import SPEAK_OF_IT, ci, compose, read, variables
from sqlalchemy import URL, make_url
from updating import Life, without_history
from walk import BIN

from mailroom.testing.databases import HERE

SERVERS = DATABASES[1:]
DRIVERS = {"sqlite": {"aiosqlite"}, "postgres": {"asyncpg"}, "sqlserver": {"aioodbc", "pyodbc"}}
WORDS = {"sqlite": r"sqlite", "postgres": r"postgres|asyncpg", "sqlserver": r"sql ?server|mssql|odbc"}
SECRET = "hunter2"


def urls(project: Path) -> tuple[URL, URL]:
    """Where settings.toml and .env.example say that the database is."""
    checked_in = tomllib.loads(read(project, "settings.toml"))["database"]["url"]
    return make_url(checked_in), make_url(variables(project)["DATABASE__URL"])


# What is there


@pytest.mark.parametrize("database", DATABASES)
def test_a_project_holds_the_parts_of_its_database_and_of_no_other(shop_on: ProjectOn, database: str) -> None:
    project = shop_on(database)
    for package in ("claims", "engines"):
        found = {path.stem for path in (project / "src/mailroom/persistence" / package).iterdir()}
        assert found == {"__init__", "base", database}
    assert (project / "compose.yaml").exists() == (database != "sqlite")
    dependencies = tomllib.loads(read(project, "pyproject.toml"))["project"]["dependencies"]
    installed = {re.match(r"[\w-]+", line)[0] for line in dependencies}  # type: ignore[index]
    assert installed & set().union(*DRIVERS.values()) == DRIVERS[database]


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("name", SPEAK_OF_IT)
def test_what_a_user_reads_speaks_of_no_other_database(shop_on: ProjectOn, database: str, name: str) -> None:
    text = read(shop_on(database), name)
    others = "|".join(words for kind, words in WORDS.items() if kind != database)
    assert re.findall(others, text, re.IGNORECASE) == []


# The server for development


@pytest.mark.parametrize("answers", [{}, ODD], ids=["defaults", "odd"])
@pytest.mark.parametrize("database", SERVERS)
def test_compose_yaml_has_the_form_that_compose_wants(
    by_copier: Render, tmp_path: Path, database: str, answers: dict[str, str]
) -> None:
    project = by_copier(tmp_path / "in", **answers, database=database)
    succeed(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml", cwd=project)


@pytest.mark.parametrize("database", SERVERS)
def test_the_server_is_pinned_watched_kept_and_reached_from_this_machine_alone(
    shop_on: ProjectOn, database: str
) -> None:
    (service,) = compose(shop_on(database))["services"].values()
    assert re.search(r":\d[\w.-]*\d", service["image"])
    assert service["healthcheck"]["test"][0] == "CMD"
    (published,) = service["ports"]
    assert published.startswith("127.0.0.1:")
    (volume,) = service["volumes"]
    assert volume.split(":")[0] in yaml.safe_load(read(shop_on(database), "compose.yaml"))["volumes"]


@pytest.mark.parametrize("database", SERVERS)
def test_a_server_without_a_password_is_refused_with_what_to_do(shop_on: ProjectOn, database: str) -> None:
    project = shop_on(database)
    (name,) = [name for name in variables(project) if name.endswith("_PASSWORD")]
    assert f"${{{name}:?copy .env.example to .env}}" in read(project, "compose.yaml")


@pytest.mark.parametrize("database", SERVERS)
def test_settings_variables_server_and_tests_mean_the_same_server(shop_on: ProjectOn, database: str) -> None:
    project = shop_on(database)
    checked_in, with_password = urls(project)
    (service,) = compose(project)["services"].values()
    password = next(value for name, value in variables(project).items() if name.endswith("_PASSWORD"))

    assert checked_in.password is None
    assert checked_in.set(password=password, query=with_password.query) == with_password
    assert password in service["environment"].values()
    assert service["ports"] == [f"{checked_in.host}:{checked_in.port}:{checked_in.port}"]
    assert make_url(HERE[database]).set(database="app") == with_password
    asked = " ".join(service["healthcheck"]["test"])
    assert "app" in asked
    assert checked_in.database == "app"
    assert checked_in.username in asked


@pytest.mark.parametrize("database", SERVERS)
def test_the_ci_of_a_project_has_the_server_that_its_tests_look_for(shop_on: ProjectOn, database: str) -> None:
    project = shop_on(database)
    job = ci(project)
    (service,) = job["services"].values()
    assert job["env"] == {"TEST_REQUIRE": database}
    (composed,) = compose(project)["services"].values()
    assert service["image"] == composed["image"]
    assert "--health-cmd" in service["options"]
    here = make_url(HERE[database])
    assert here.password in service["env"].values()
    assert service["ports"] == [f"{here.host}:{here.port}:{here.port}"]


def test_the_odbc_driver_comes_from_where_the_readme_says(shop_on: ProjectOn) -> None:
    project = shop_on("sqlserver")
    (install,) = [step["run"] for step in ci(project)["steps"] if "msodbcsql18" in step.get("run", "")]
    assert f"```text\n{install}```" in read(project, "README.md")
    dockerfile = read(project, "Dockerfile")
    assert "/packages-microsoft-prod.deb" in dockerfile
    assert "msodbcsql18" in dockerfile
    assert "msodbcsql18" in read(project, "README.md").partition("On macOS")[2]
    assert "On Windows" in read(project, "README.md")


@pytest.mark.parametrize("database", SERVERS)
def test_an_image_for_a_server_names_no_database_and_keeps_no_volume(shop_on: ProjectOn, database: str) -> None:
    dockerfile = read(shop_on(database), "Dockerfile")
    assert "DATABASE__URL" not in dockerfile
    assert "VOLUME" not in dockerfile


# At work


@pytest.mark.parametrize("database", SERVERS)
def test_the_demo_without_its_server_is_one_clear_line(shop_on: ProjectOn, tmp_path: Path, database: str) -> None:
    project = Path(shutil.copytree(shop_on(database), tmp_path / "shop"))
    shutil.copy(project / ".env.example", project / ".env")
    away = urls(project)[1].set(port=1, password=SECRET).render_as_string(hide_password=False)
    environment = {**PATH, "PYTHONPATH": str(project / "src"), "DATABASE__URL": away}
    done = run(sys.executable, "-c", "from shop.cli import main; main()", "demo", cwd=project, env=environment)
    *before, error = done.stdout.splitlines()
    assert SECRET not in done.stdout
    assert "Traceback" not in done.stdout
    assert error.startswith("error: ")
    if "cannot be loaded" in error:  # SQL Server, where unixODBC is not installed
        assert (done.returncode, before) == (2, [])
        assert "README.md" in error
        return
    assert done.returncode == 1
    assert len(before) == 1
    assert "1. migrate" in before[0]
    assert "127.0.0.1:1/app" in error
    assert "docker compose up -d --wait" in error


@pytest.fixture(scope="module")
def on_postgres(lives: Callable[[str], Life], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An updated project in which tests may work, with rabbitmq; the environment that uv makes there has no other
    driver.
    """
    return without_history(lives("postgres with rabbitmq").updated, tmp_path_factory.mktemp("on postgres"))


def test_a_project_on_postgres_does_what_its_readme_says(
    on_postgres: Path, postgres_url: str, own_names: OwnNames
) -> None:
    """On the servers that are here, instead of the containers."""
    shown = commands(on_postgres / "README.md", "See it work")
    assert "docker compose up -d --wait" in shown
    environment = {**FRESH, **SOMEBODY, "DATABASE__URL": postgres_url, **own_names.variables()}
    said = [
        succeed("sh", "-c", command, cwd=on_postgres, env=environment)
        for command in shown
        if not command.startswith("docker ")
    ]
    assert any("3 orders committed; 3 rows wait in the outbox" in output for output in said)


@pytest.mark.usefixtures("postgres_url", "own_names")
def test_a_project_on_postgres_passes_its_own_tests(on_postgres: Path) -> None:
    command = ("uv", "run", "--with", "pytest-xdist", "pytest", "-q", "-n", "2")
    said = succeed(*command, cwd=on_postgres, env={**FRESH, "TEST_REQUIRE": "postgres,rabbitmq"})
    assert " passed" in said
    assert not list(on_postgres.glob(".venv/lib/*/site-packages/aiosqlite"))
