"""Every database with every transport, made at the first of three versions and updated to the last.

An updated project is what a fresh one would be, so what it passes stands for fresh projects as well: linters, types and
tests run once, after the update. Each combination passes its linters and its own tests here. The tests of the framework
in it are the same files everywhere, and `make test-framework` runs them over all that the template has. So a choice
runs them, with each database, each transport and each engine, to see that none needs what its project does not have:

| combination | made by | where |
| --- | --- | --- |
| SQLite | cookiecutter | tests/test_rendered_project.py, all that its README says, in an environment of its own |
| SQLite, Azure Service Bus | copier | tests/test_azure_service_bus.py, on the double |
| PostgreSQL, RabbitMQ | cookiecutter | tests/test_databases.py, in an environment of its own |
| SQL Server | cookiecutter | here; without a server most of them are skipped |

`make test-all` runs them here for every combination.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from checkout import TOKENS, Render, succeed, tree
from examples import COMBINATIONS, EVERY_COMBINATION
from updating import LATEST, OF_THE_TEMPLATE, SHARED, Life, changed, environment, updated, without_git, without_history

if TYPE_CHECKING:
    from servicebus.double import Double


@pytest.fixture(scope="session", params=EVERY_COMBINATION)
def combination(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def life(lives: Callable[[str], Life], combination: str) -> Life:
    return lives(combination)


def test_it_takes_two_versions_at_once_and_is_what_a_fresh_one_is_but_for_what_is_the_users(
    life: Life, combination: str, versions: Path, by_copier: Render, tmp_path: Path
) -> None:
    """Files, modes and answers; what was the user's at birth is as it was."""
    fresh = by_copier(tmp_path / "fresh", source=versions, version=LATEST, **COMBINATIONS[combination])
    assert without_git(life.updated) == updated(life.born, fresh)
    assert changed(life.updated) == {
        *OF_THE_TEMPLATE,
        *SHARED,
        ".copier-answers.yml",
        "src/mailroom/version.py",
        "src/mailroom/outbox/arrival.py",
        "tests/mailroom/test_gate.py",
    }


def test_the_other_engine_makes_the_same_of_the_first_version_so_its_update_is_this_one(
    request: pytest.FixtureRequest, life: Life, combination: str, versions: Path, tmp_path: Path
) -> None:
    """Byte for byte, with the origin in it: copier finds nothing by which it could tell who made a project."""
    (other,) = {"by_cookiecutter", "by_copier"} - {EVERY_COMBINATION[combination]}
    render: Render = request.getfixturevalue(other)
    into = tmp_path / "made here"
    into.mkdir()
    assert tree(render(into, source=versions, **COMBINATIONS[combination])) == tree(life.born)


def test_it_passes_its_linters_and_types(life: Life, lint: Callable[[Path], None]) -> None:
    lint(life.updated)


def test_nothing_in_it_waits_to_be_rendered(life: Life) -> None:
    """Except for GitHub, which renders its workflows."""
    left = {
        name
        for name, (_, content) in without_git(life.updated).items()
        if TOKENS.search(content.decode("utf-8").replace("${{ github.", ""))
    }
    assert left == set()


def test_it_passes_its_own_tests(life: Life, tmp_path: Path) -> None:
    """In the environment of the template, with the servers that are here; without one they are skipped."""
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ignore=tests/mailroom")
    project = without_history(life.updated, tmp_path)
    assert " passed" in succeed(*command, cwd=project, env=environment(project))


@pytest.mark.parametrize("chosen", EVERY_COMBINATION if os.environ.get("MAILROOM_EVERY_COMBINATION") else ["sqlserver"])
def test_it_passes_the_tests_of_its_framework(
    lives: Callable[[str], Life], own_double: "Double", tmp_path: Path, chosen: str
) -> None:
    """Where no server is, those that need none."""
    project = without_history(lives(chosen).updated, tmp_path)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "tests/mailroom")
    assert " passed" in succeed(*command, cwd=project, env={**environment(project), **own_double.variables_of_tests})
