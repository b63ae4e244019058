"""The CI of the template and of rendered projects: valid, safe, pinned by commit, and running what a page says."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from checkout import ROOT, Render, run, succeed
from examples import COMBINATIONS
from pages import commands

BIN = Path(sys.executable).parent
USED = re.compile(r"^\s*(?:- )?uses: (.*)$", re.MULTILINE)
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


@pytest.fixture(
    scope="module",
    params=["template", "defaults", "odd with rabbitmq", "postgres with rabbitmq", "sqlserver with azure_service_bus"],
)
def folder(request: pytest.FixtureRequest, by_copier: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What holds a `.github`: the template itself, and rendered projects."""
    if request.param == "template":
        return ROOT
    return by_copier(tmp_path_factory.mktemp("workflows") / "in", **COMBINATIONS[request.param])


def workflows(folder: Path) -> list[Path]:
    return sorted((folder / ".github" / "workflows").iterdir())


def used(folder: Path) -> Iterator[str]:
    for workflow in workflows(folder):
        yield from USED.findall(workflow.read_text(encoding="utf-8"))


def test_what_github_reads_has_the_form_that_github_wants(folder: Path) -> None:
    check = (BIN / "check-jsonschema", "--builtin-schema")
    succeed(*check, "vendor.github-workflows", *workflows(folder), cwd=folder)
    succeed(*check, "custom.github-workflows-require-timeout", *workflows(folder), cwd=folder)
    succeed(*check, "vendor.dependabot", ".github/dependabot.yml", cwd=folder)


def test_a_workflow_linter_finds_nothing_unsafe(folder: Path) -> None:
    succeed(BIN / "zizmor", "--offline", "--quiet", ".github", cwd=folder)


def test_every_action_is_pinned_by_its_commit_and_says_its_version(folder: Path) -> None:
    found = list(used(folder))
    assert found
    assert [action for action in found if not PINNED.fullmatch(action)] == []


def test_the_template_and_its_projects_pin_an_action_alike(shop: Path) -> None:
    pins = {*used(ROOT), *used(shop)}
    assert len(pins) == len({pin.partition("@")[0] for pin in pins})


def test_the_ci_of_a_project_runs_what_its_readme_says(shop: Path) -> None:
    steps = yaml.safe_load((shop / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]["test"]["steps"]
    assert {*commands(shop / "README.md", "Test it")} <= {step.get("run") for step in steps}


def test_the_ci_of_the_template_runs_what_is_run_by_hand() -> None:
    (job,) = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]


@pytest.mark.parametrize(("committed", "wanted"), [(True, "uv sync --locked"), (False, "uv sync")])
def test_the_ci_of_a_project_installs_what_the_lock_file_says_once_there_is_one(
    shop: Path, tmp_path: Path, committed: bool, wanted: str
) -> None:
    steps = yaml.safe_load((shop / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]["test"]["steps"]
    (install,) = [step["run"] for step in steps if "uv sync" in step.get("run", "")]
    if committed:
        (tmp_path / "uv.lock").touch()
    said = run("sh", "-c", f"uv() {{ echo uv $*; }}; {install}", cwd=tmp_path)
    assert said.stdout.strip() == wanted
