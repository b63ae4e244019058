"""What is checked before a commit, in the template and in a rendered project: all is well as it comes, faults are not.

The hooks' environment is made from PyPI, once, in .cache.
"""

import shutil
import sys
from pathlib import Path

import pytest
from checkout import HOOKS, Render, git, run, succeed
from examples import ODD

BIN = Path(sys.executable).parent
PRE_COMMIT = BIN / "pre-commit"
ALL = ("run", "--all-files", "--show-diff-on-failure")
# tests/test_rendered_project.py runs these on every combination, and `make test` on the template.
LINTERS = {"SKIP": "lint,ruff-check,ruff-format,mypy,lint-imports"}

# What each hook refuses.
REFUSED = {
    "detect-private-key": ("key.txt", "-----BEGIN RSA " + "PRIVATE KEY-----\n"),
    "check-added-large-files": ("large.txt", "x" * 600_000 + "\n"),
    "mixed-line-ending": ("windows.txt", "one\r\ntwo\r\n"),
    "trailing-whitespace": ("spaces.txt", "one \n"),
    "end-of-file": ("end.txt", "one"),
    "check-yaml": ("broken.yaml", "a: [\n"),
    "check-toml": ("broken.toml", "a = [\n"),
}


def committed(project: Path) -> Path:
    git("init", "--quiet", cwd=project)
    git("add", "--all", cwd=project)
    git("commit", "--quiet", "--message", "As it comes", cwd=project)
    return project


@pytest.fixture
def own_template(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "template"))


@pytest.fixture(params=["template", "project"])
def repository(request: pytest.FixtureRequest) -> Path:
    if request.param == "template":
        return Path(request.getfixturevalue("own_template"))
    return committed(request.getfixturevalue("own_shop"))


def test_a_new_project_passes_all_of_it(own_shop: Path) -> None:
    succeed(BIN / "uv", "lock", "--quiet", cwd=own_shop, env=HOOKS)
    said = succeed(PRE_COMMIT, *ALL, cwd=committed(own_shop), env=HOOKS)
    assert "Skipped" not in said
    assert git("status", "--porcelain", cwd=own_shop) == ""


def test_a_project_with_odd_answers_passes(by_copier: Render, tmp_path: Path) -> None:
    project = committed(by_copier(tmp_path / "odd", **ODD))
    succeed(PRE_COMMIT, *ALL, cwd=project, env=HOOKS | LINTERS)


def test_the_template_passes(own_template: Path) -> None:
    succeed(PRE_COMMIT, *ALL, cwd=own_template, env=HOOKS | LINTERS)


def test_a_conflict_marker_is_not_committed_though_no_merge_is_in_progress(repository: Path) -> None:
    """`copier update` leaves such markers, and git knows of no merge."""
    succeed(PRE_COMMIT, "install", cwd=repository, env=HOOKS)
    marked = "<<<<<<< before updating\nours\n=======\ntheirs\n>>>>>>> after updating\n"
    (repository / "README.md").write_text(marked, encoding="utf-8")
    git("add", "README.md", cwd=repository)
    identity = ("-c", "user.name=Tester", "-c", "user.email=tester@example.com")
    refused = run("git", *identity, "commit", "--message", "Updated", cwd=repository, env=HOOKS)
    assert refused.returncode == 1
    assert "README.md:1: Merge conflict string" in refused.stdout


@pytest.mark.parametrize(("hook", "file"), REFUSED.items(), ids=REFUSED)
def test_a_file_that_does_not_belong_is_named_by_the_hook_that_refuses_it(
    repository: Path, hook: str, file: tuple[str, str]
) -> None:
    name, content = file
    (repository / name).write_bytes(content.encode())
    git("-c", "core.autocrlf=false", "add", name, cwd=repository)
    refused = run(PRE_COMMIT, "run", cwd=repository, env=HOOKS | LINTERS)
    assert refused.returncode == 1
    assert [line for line in refused.stdout.splitlines() if line.startswith("- hook id: ")] == [f"- hook id: {hook}"]
    assert name in refused.stdout
