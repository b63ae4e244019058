"""The template as its users get it, and both engines as commands.

The working tree is copied into a git repository with one tag, so that uncommitted work is tested, caches are not, and
both engines take the same commit. User settings of the engines are kept out.
"""

import gc
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import brokers
import hypothesis
import pytest
import updating
from checkout import LINTERS, ROOT, TAG, ProjectOn, Render, git, source_files, succeed
from examples import COMBINATIONS, EVERY_COMBINATION

from mailroom.testing.databases import is_required
from mailroom.testing.plugin import fresh_database

if TYPE_CHECKING:
    from servicebus.double import Double

# What a machine is slow at depends on what else it does, so a slow example says nothing about the code.
hypothesis.settings.register_profile("template", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("template")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template in a clean repository of its own, at TAG."""
    folder = tmp_path_factory.mktemp("template").resolve()
    for name in source_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    git("init", "--quiet", cwd=folder)
    git("add", "--all", "--force", cwd=folder)
    git("commit", "--quiet", "--message", "The working tree", cwd=folder)
    git("tag", TAG, cwd=folder)
    return folder


@pytest.fixture(scope="session")
def engines_home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables that give the engines a home without anybody's settings."""
    home = str(tmp_path_factory.mktemp("home"))
    return {"HOME": home, "USERPROFILE": home, "XDG_CONFIG_HOME": home}


@pytest.fixture(scope="session")
def by_cookiecutter(template: Path, engines_home: dict[str, str]) -> Render:
    """`by_cookiecutter(into, **answers)` runs its command line and returns the project's folder."""

    def render(into: Path, source: str | Path = template, cwd: Path | None = None, **answers: str) -> Path:
        given = [f"{name}={value}" for name, value in answers.items()]
        before = set(into.iterdir()) if into.exists() else set()
        command = Path(sys.executable).with_name("cookiecutter")
        succeed(command, "--no-input", "--output-dir", into, source, *given, cwd=cwd or into.parent, env=engines_home)
        (project,) = set(into.iterdir()) - before
        return project

    return render


@pytest.fixture(scope="session")
def by_copier(template: Path, engines_home: dict[str, str]) -> Render:
    """`by_copier(into, **answers)` runs its command line; the project's folder is named as cookiecutter names it."""

    def render(
        into: Path, source: str | Path = template, cwd: Path | None = None, version: str = "HEAD", **answers: str
    ) -> Path:
        given = [part for name, value in answers.items() for part in ("--data", f"{name}={value}")]
        project = into / answers.get("project_slug", "shop")
        command = Path(sys.executable).with_name("copier")
        options = ("copy", "--quiet", "--defaults", "--vcs-ref", version)
        succeed(command, *options, *given, source, project, cwd=cwd or into.parent, env=engines_home)
        return project

    return render


@pytest.fixture(scope="session")
def shop(by_cookiecutter: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default project. Tests only read it, or copy it."""
    return by_cookiecutter(tmp_path_factory.mktemp("default"))


@pytest.fixture(scope="session")
def shop_on(by_copier: Render, tmp_path_factory: pytest.TempPathFactory) -> ProjectOn:
    """`shop_on(database, transport)`: the default project on that database. Tests only read it, or copy it."""

    @cache
    def made(database: str, transport: str = "in_process") -> Path:
        into = tmp_path_factory.mktemp(f"{database}-{transport}") / "in"
        return by_copier(into, database=database, transport=transport)

    return made


@pytest.fixture(scope="session")
def copier(engines_home: dict[str, str]) -> updating.Copier:
    """`copier(*arguments, cwd=…)`: its command line, which must succeed."""

    def succeeds(*arguments: str | Path, cwd: Path) -> str:
        return succeed(updating.COPIER, *arguments, cwd=cwd, env=engines_home)

    return succeeds


@pytest.fixture(scope="session")
def versions(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template with three versions; the first of them is checked out."""
    folder = Path(shutil.copytree(template, tmp_path_factory.mktemp("versions") / "template"))
    updating.add_versions(folder)
    return folder


@pytest.fixture(scope="session")
def lives(
    request: pytest.FixtureRequest, versions: Path, copier: updating.Copier, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], updating.Life]:
    """`lives(combination)`: a project from its birth, at the first version, to its update. Tests only read it.

    It is made from a relative path, in one folder, and updated from another.
    """

    @cache
    def lived(combination: str) -> updating.Life:
        render: Render = request.getfixturevalue(EVERY_COMBINATION[combination])
        into = tmp_path_factory.mktemp("born")
        source = os.path.relpath(versions, into)
        before = render(into, source=source, cwd=into, **COMBINATIONS[combination])
        project = updating.own_copy(before, tmp_path_factory.mktemp("updated"))
        copier(*updating.UPDATE, project, cwd=into)
        return updating.Life(before, project)

    return lived


@pytest.fixture(scope="session")
def lint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], None]:
    """`lint(project)`: it passes its linters and types. What mypy learned of one project it knows of the next."""
    cache_of_mypy = tmp_path_factory.mktemp("mypy")

    def passes(project: Path) -> None:
        environment = {**updating.environment(project), "MYPY_CACHE_DIR": str(cache_of_mypy)}
        for linter in LINTERS:
            succeed(updating.BIN / linter[0], *linter[1:], cwd=project, env=environment)

    return passes


@pytest.fixture
def own_shop(shop: Path, tmp_path: Path) -> Path:
    """A copy of the default project that a test may work in."""
    return Path(shutil.copytree(shop, tmp_path / "shop"))


@pytest.fixture
def own_names() -> Iterator[brokers.OwnNames]:
    """Names of the test's own on the broker. Without one it is skipped, or fails if TEST_REQUIRE lists rabbitmq."""
    problem = brokers.problem()
    if problem and is_required("rabbitmq"):
        pytest.fail(problem, pytrace=False)
    if problem:
        pytest.skip(problem)
    names = brokers.OwnNames()
    yield names
    names.delete()


@pytest.fixture(scope="session")
def running_double() -> Iterator["Double"]:
    """Starting it takes a second."""
    from servicebus.double import servicebus  # and the client that comes along takes another, in every session

    with servicebus() as double:
        yield double


@pytest.fixture(scope="module")
def double(running_double: "Double") -> Iterator["Double"]:
    """The double of Azure Service Bus, with no entities.

    The client does not close the socket of a connection that fails. Such sockets are collected here, where that is
    known, and not while some other test runs.
    """
    yield running_double
    running_double.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def own_double(running_double: "Double") -> Iterator["Double"]:
    """The double with no entities, for what other processes do on it in one test."""
    yield running_double
    running_double.reset()


@pytest.fixture
def postgres_url(tmp_path: Path) -> Iterator[str]:
    """A database of the test's own. Without a server it is skipped, or fails if TEST_REQUIRE lists postgres."""
    with fresh_database("postgres", tmp_path) as url:
        yield url


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """Commands that run in this process configure its logging, which is that of the next test, too."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
