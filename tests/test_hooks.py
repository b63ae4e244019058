"""What cookiecutter's hooks add: where a project comes from, and nothing that tools left behind (FAULTS F20, F21)."""

import ast
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from checkout import ROOT, TAG, Render, git, succeed
from updating import origin

SLUG = "{{cookiecutter.project_slug}}"
WHAT_TO_DO = "replace the line below by these two and commit"
COOKIECUTTER = Path(sys.executable).with_name("cookiecutter")


@pytest.fixture(params=["by_cookiecutter", "by_copier"])
def render(request: pytest.FixtureRequest) -> Render:
    engine: Render = request.getfixturevalue(request.param)
    return engine


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "made here"
    folder.mkdir()
    return folder


@pytest.fixture
def clone(template: Path, tmp_path: Path) -> Path:
    """A template that the test may change."""
    git("clone", "--quiet", str(template), str(tmp_path / "clone's"), cwd=tmp_path)
    return tmp_path / "clone's"


def test_the_origin_is_the_templates_full_path_and_tag(render: Render, template: Path, into: Path) -> None:
    assert origin(render(into)) == (TAG, str(template))


def test_a_relative_path_is_recorded_in_full(render: Render, clone: Path, into: Path) -> None:
    assert origin(render(into, source="../clone's", cwd=into)) == (TAG, str(clone))


def test_a_dot_is_recorded_in_full(render: Render, clone: Path, into: Path) -> None:
    assert origin(render(into, source=".", cwd=clone)) == (TAG, str(clone))


def test_a_url_is_recorded_as_it_was_given(render: Render, template: Path, into: Path) -> None:
    url = f"git+{template.as_uri()}"
    assert origin(render(into, source=url)) == (TAG, url)


def test_a_commit_beyond_the_newest_tag_is_recorded_as_such_and_never_as_a_branch(
    render: Render, clone: Path, into: Path
) -> None:
    git("commit", "--quiet", "--allow-empty", "--message", "Beyond", cwd=clone)
    commit, _ = origin(render(into, source=clone))
    assert commit == f"{TAG}-1-g{git('rev-parse', '--short', 'HEAD', cwd=clone)}"


def test_a_template_without_git_has_no_origin(render: Render, clone: Path, into: Path) -> None:
    shutil.rmtree(clone / ".git")
    project = render(into, source=clone)
    assert origin(project) == (None, ".")
    assert WHAT_TO_DO in (project / ".copier-answers.yml").read_text(encoding="utf-8")


def test_a_template_inside_another_repository_has_no_origin(render: Render, clone: Path, into: Path) -> None:
    shutil.rmtree(clone / ".git")
    git("init", "--quiet", cwd=clone.parent)
    git("commit", "--quiet", "--allow-empty", "--message", "Something else", cwd=clone.parent)
    project = render(into, source=clone)
    assert origin(project) == (None, ".")
    assert WHAT_TO_DO in (project / ".copier-answers.yml").read_text(encoding="utf-8")


def test_an_abbreviation_that_only_cookiecutter_knows_is_recorded_as_the_address_behind_it(
    template: Path, into: Path
) -> None:
    config = into.parent / "cookiecutter.yaml"
    places = {"cookiecutters_dir": str(into.parent / "clones"), "replay_dir": str(into.parent / "replay")}
    address = f"git+{template.parent.as_uri()}/{{0}}"
    config.write_text(yaml.safe_dump({**places, "abbreviations": {"here": address}}), encoding="utf-8")
    options = ("--no-input", "--config-file", config, "--output-dir", into)
    succeed(COOKIECUTTER, *options, f"here:{template.name}", cwd=into.parent)
    assert origin(into / "shop") == (TAG, f"git+{template.as_uri()}")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda clone: (clone / "LICENSE").write_text("changed"), "uncommitted changes"),
        (lambda clone: shutil.rmtree(clone / ".git"), "before you update, see .copier-answers.yml"),
    ],
    ids=["uncommitted changes", "no repository"],
)
def test_an_origin_that_an_update_cannot_rely_on_is_said_aloud(
    clone: Path, into: Path, engines_home: dict[str, str], change: Callable[[Path], object], note: str
) -> None:
    command = (COOKIECUTTER, "--no-input", "--output-dir")
    assert "Note:" not in succeed(*command, into / "before", clone, cwd=into, env=engines_home)
    change(clone)
    assert note in succeed(*command, into / "after", clone, cwd=into, env=engines_home)


def test_what_tools_left_in_the_template_does_not_come_through(
    by_cookiecutter: Render, clone: Path, into: Path
) -> None:
    left = ["src/mailroom/__pycache__/x.cpython-311.pyc", ".mypy_cache/3.11/x.json", ".ruff_cache/x", ".hypothesis/x/y"]
    for name in left:
        path = clone / SLUG / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{{ no template }} {%", encoding="utf-8")
    project = by_cookiecutter(into, source=clone)
    assert [name for name in left if (project / name).exists()] == []
    assert not (project / "src/mailroom/__pycache__").exists()


def test_both_hooks_look_for_the_template_in_the_same_way() -> None:
    """cookiecutter runs each as a script of its own, from a temporary folder, so they cannot share a module."""
    found = []
    for name in ("pre_gen_project.py", "post_gen_project.py"):
        module = ast.parse((ROOT / "hooks" / name).read_text(encoding="utf-8"))
        found += [ast.dump(one) for one in module.body if getattr(one, "name", "") == "template_folder"]
    assert len(found) == 2
    assert found[0] == found[1]
