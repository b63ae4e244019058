"""A project works by the commands of its README, and without its sample, before and after an update (FAULTS F22, F23).

What every combination passes is in tests/test_updated_projects.py.
"""

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from checkout import FRESH, PATH, PROJECT, SOMEBODY, ProjectOn, succeed
from examples import DATABASES, TRANSPORTS
from pages import commands
from updating import UPDATE, Copier, Life, contents, environment, under_git, without_history
from walk import Walk, command_folder

WITH_PIP, DELETION = "The same with plain pip", "Delete the sample"  # headings of its README


def test_every_file_of_the_template_is_in_some_project(shop_on: ProjectOn) -> None:
    """What is in which is the concern of tests/test_databases.py and tests/test_transports.py. One kind of file is in
    none: tests of the framework that need a double of the template's.
    """
    projects = [*map(shop_on, DATABASES), *(shop_on("sqlite", transport) for transport in TRANSPORTS[1:])]
    missing = [
        name
        for path in PROJECT.rglob("*")
        if path.is_file() and not any(part.endswith(("cache", "cache__", ".hypothesis")) for part in path.parts)
        for name in [path.relative_to(PROJECT).as_posix().replace("{{cookiecutter.package_name}}", "shop")]
        if not any((project / name).exists() for project in projects) and not name.endswith("service_bus_faults.py")
    ]
    assert missing == []


def test_uv_runs_all_that_its_readme_says_in_a_fresh_environment(lives: Callable[[str], Life], tmp_path: Path) -> None:
    """From its demo over its tests and linters to a module of one's own; the sections below have tests of theirs.

    After an update: an updated project is what a fresh one is, so nothing is missed, and its tests run once.
    """
    own_shop = without_history(lives("defaults").updated, tmp_path)
    in_front = {"PATH": f"{own_shop / '.venv' / 'bin'}{os.pathsep}{PATH['PATH']}"}
    walk = Walk(own_shop, {**FRESH, **in_front, **SOMEBODY, "PYTHONPATH": ""})
    walk.take(own_shop / "README.md", lambda heading: heading not in (WITH_PIP, DELETION))

    with sqlite3.connect(own_shop / "shop.db") as database:
        assert database.execute("SELECT text FROM parcel_notes").fetchall() == [("handed to a courier",)]
    database.close()


def test_plain_pip_runs_what_its_readme_says(own_shop: Path) -> None:
    """Of the framework's tests, which the test above runs with the same packages, only what they import."""
    *listed, tests = commands(own_shop / "README.md", WITH_PIP)
    assert listed
    for command in listed:
        succeed("sh", "-c", command, cwd=own_shop, env=PATH)
    assert tests.endswith("pytest")
    succeed("sh", "-c", f"{tests} --ignore=tests/mailroom", cwd=own_shop, env=PATH)
    succeed("sh", "-c", f"{tests} --collect-only -q tests/mailroom", cwd=own_shop, env=PATH)


def test_what_is_left_without_the_sample_still_works_and_an_update_brings_nothing_of_it_back(
    lives: Callable[[str], Life], lint: Callable[[Path], None], copier: Copier, tmp_path: Path
) -> None:
    """Its README says what to delete: a folder, a migration, a test file, and the lines that mount it."""
    own_shop = without_history(lives("defaults").born, tmp_path)
    in_front = {"PATH": f"{command_folder(tmp_path / 'bin')}{os.pathsep}{PATH['PATH']}"}
    succeed("shop", "db", "upgrade", cwd=own_shop, env={**environment(own_shop), **in_front})
    before = commands(own_shop / "README.md", DELETION)
    assert before
    for command in before:
        succeed("sh", "-c", command, cwd=own_shop, env={**environment(own_shop), **in_front})

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

    left = {name for name in contents(own_shop) if not name.startswith(("src/mailroom/", "tests/mailroom/"))}
    copier(*UPDATE, under_git(own_shop), cwd=tmp_path)
    assert left == {name for name in contents(own_shop) if not name.startswith(("src/mailroom/", "tests/mailroom/"))}
    lint(own_shop)
    command = [sys.executable, "-c", "from shop.cli import main; main()"]
    for arguments in (["db", "upgrade"], ["db", "check"], ["posture"], ["outbox", "stats"]):
        succeed(*command, *arguments, cwd=own_shop, env=environment(own_shop))
    tests = (sys.executable, "-m", "pytest", "-q", "--ignore=tests/mailroom")
    said = succeed(*tests, cwd=own_shop, env=environment(own_shop))
    assert " passed" in said
