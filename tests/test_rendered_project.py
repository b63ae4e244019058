"""A rendered project passes its own tests, linters and types, and its README's commands work (FAULTS F22, F23)."""

import os
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from checkout import FRESH, PATH, PROJECT, SOMEBODY, TOKENS, ProjectOn, Render, succeed
from examples import COMBINATIONS, DATABASES, TRANSPORTS
from pages import commands
from walk import BIN, Walk, command_folder

WITH_PIP, DELETION = "The same with plain pip", "Delete the sample"  # headings of its README
LINTERS = [
    ("ruff", "check", "--no-cache"),
    ("ruff", "format", "--check", "--no-cache"),
    ("mypy", "--strict", "--cache-dir", os.devnull, "src"),
    ("lint-imports", "--no-cache"),
    ("hadolint", "Dockerfile"),
]


def shared(project: Path) -> dict[str, str]:
    """One environment for all rendered projects: this one, with the project's sources in front."""
    return {**PATH, "PYTHONPATH": str(project / "src")}


@pytest.fixture(
    scope="session", params=["defaults", "odd with rabbitmq", "longest", "postgres with rabbitmq", "sqlserver"]
)
def rendered(request: pytest.FixtureRequest, by_copier: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_copier(tmp_path_factory.mktemp("rendered") / "in", **COMBINATIONS[request.param])


@pytest.mark.parametrize("linter", LINTERS, ids=lambda linter: " ".join(linter[:2]))
def test_it_passes_its_own_linters_as_it_comes_out(rendered: Path, linter: tuple[str, ...]) -> None:
    succeed(BIN / linter[0], *linter[1:], cwd=rendered, env=shared(rendered))


def test_nothing_in_it_waits_to_be_rendered(rendered: Path) -> None:
    """Except for GitHub, which renders its workflows."""
    left = {
        path.relative_to(rendered)
        for path in rendered.rglob("*")
        if path.is_file() and TOKENS.search(path.read_text(encoding="utf-8").replace("${{ github.", ""))
    }
    assert left == set()


def test_every_file_of_the_template_is_in_some_project(shop_on: ProjectOn) -> None:
    """What is in which is the concern of tests/test_databases.py and tests/test_transports.py."""
    projects = [*map(shop_on, DATABASES), *(shop_on("sqlite", transport) for transport in TRANSPORTS[1:])]
    missing = [
        name
        for path in PROJECT.rglob("*")
        if path.is_file() and not any(part.endswith(("cache", "cache__", ".hypothesis")) for part in path.parts)
        for name in [path.relative_to(PROJECT).as_posix().replace("{{cookiecutter.package_name}}", "shop")]
        if not any((project / name).exists() for project in projects)
    ]
    assert missing == []


def test_uv_runs_all_that_its_readme_says_in_a_fresh_environment(own_shop: Path) -> None:
    """From its demo over its tests and linters to a module of one's own; the sections below have tests of theirs."""
    in_front = {"PATH": f"{own_shop / '.venv' / 'bin'}{os.pathsep}{PATH['PATH']}"}
    walk = Walk(own_shop, {**FRESH, **in_front, **SOMEBODY, "PYTHONPATH": ""})
    walk.take(own_shop / "README.md", lambda heading: heading not in (WITH_PIP, DELETION))

    with sqlite3.connect(own_shop / "shop.db") as database:
        assert database.execute("SELECT text FROM parcel_notes").fetchall() == [("handed to a courier",)]
    database.close()


def test_plain_pip_runs_what_its_readme_says(own_shop: Path) -> None:
    listed = commands(own_shop / "README.md", WITH_PIP)
    assert listed
    for command in listed:
        succeed("sh", "-c", command, cwd=own_shop, env=PATH)


def test_what_is_left_without_the_sample_still_works(own_shop: Path, tmp_path: Path) -> None:
    """Its README says what to delete: a folder, a migration, a test file, and the lines that mount it."""
    in_front = {"PATH": f"{command_folder(tmp_path / 'bin')}{os.pathsep}{PATH['PATH']}"}
    succeed("shop", "db", "upgrade", cwd=own_shop, env={**shared(own_shop), **in_front})
    before = commands(own_shop / "README.md", DELETION)
    assert before
    for command in before:
        succeed("sh", "-c", command, cwd=own_shop, env={**shared(own_shop), **in_front})

    package = own_shop / "src" / "shop"
    shutil.rmtree(package / "orders")
    (own_shop / "migrations" / "versions" / "0002_orders.py").unlink()
    (own_shop / "tests" / "test_orders.py").unlink()
    for file, lines in {
        "app.py": {"from shop import orders\n": "", "orders.handlers": ""},
        "cli.py": {"from shop.orders.demo import demo\n": "", "main.command()(demo)\n": ""},
    }.items():
        text = (package / file).read_text(encoding="utf-8")
        for line, instead in lines.items():
            assert line in text
            text = text.replace(line, instead)
        (package / file).write_text(text, encoding="utf-8")

    for linter in LINTERS:
        succeed(BIN / linter[0], *linter[1:], cwd=own_shop, env=shared(own_shop))
    command = [sys.executable, "-c", "from shop.cli import main; main()"]
    for arguments in (["db", "upgrade"], ["db", "check"], ["posture"], ["outbox", "stats"]):
        succeed(*command, *arguments, cwd=own_shop, env=shared(own_shop))
    said = succeed(sys.executable, "-m", "pytest", "-q", "--ignore=tests/mailroom", cwd=own_shop, env=shared(own_shop))
    assert " passed" in said
