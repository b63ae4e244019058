"""The template's README: its commands work on a fresh checkout, in a fresh environment, and print what it shows (F23).

`make test` is the one that is running now.
"""

import re
import shutil
from pathlib import Path

import pytest
from checkout import ROOT, succeed
from pages import commands

README = ROOT / "README.md"
SHOWN = re.compile(r"^```text\n(── ?.*?|─+.*?|\(left out.*?)^```$", re.MULTILINE | re.DOTALL)
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Only what a machine has; what the makefile of this run set is not handed on to the one under test.
ENVIRONMENT = {"MAKEFLAGS": "", "MAKELEVEL": "", "UV_PYTHON": "", "PYTHONPYCACHEPREFIX": "", "COLUMNS": "80"}


@pytest.fixture(scope="module")
def checkout(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fresh") / "cookiecutter-mailroom"
    shutil.copytree(template, folder)
    return folder


def lines(text: str) -> list[str]:
    """What is told, without the identities of one run, the frames of tables and the notes in parentheses."""
    told = (UUID.sub("", line).strip(" │┃") for line in text.splitlines())
    return [line for line in told if line and not line.startswith(("(", "┏", "┡", "└"))]


def test_its_commands_print_what_it_shows(checkout: Path) -> None:
    told = [
        succeed("sh", "-c", command, cwd=checkout, env=ENVIRONMENT)
        for command in commands(README)
        if command != "make test"
    ]
    shown = SHOWN.findall(README.read_text(encoding="utf-8"))
    assert len(told) == len(shown) == 2
    for printed, promised in zip(told, shown, strict=True):
        missing = [line for line in lines(promised) if line not in lines(printed)]
        assert missing == [], printed


def test_ci_runs_the_command_that_it_names() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make test" in commands(README)
    assert "exec make test" in script
