"""Where the template is, and whether it had a tag: an update works, or words say what to do (FAULTS F20)."""

import re
import shutil
from pathlib import Path

import pytest
from checkout import PROJECT, ROOT, TAG, Render, git, run, succeed
from updating import (
    COOKIECUTTER,
    COPIER,
    LATEST,
    NEXT,
    UPDATE,
    Copier,
    changed,
    commit,
    origin,
    release,
    replace,
    under_git,
)

HTTPS, SSH = "https://github.com/", "git@github.com:"


@pytest.fixture
def network(versions: Path, engines_home: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Variables with which git finds github.com/org/ here; what the engines keep, they keep in a home of the test."""
    git("clone", "--quiet", "--bare", versions, tmp_path / "hub" / "mailroom.git", cwd=tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    hub = (tmp_path / "hub").as_uri()
    lines = [f'[url "{hub}/"]', *(f"insteadOf = {address}org/" for address in (HTTPS, SSH))]
    (home / ".gitconfig").write_text("\n".join(lines), encoding="utf-8")
    return {name: str(home) for name in (*engines_home, "XDG_CACHE_HOME")}


def test_a_short_name_is_found_again_and_so_is_the_clone_that_cookiecutter_kept_of_it(
    network: dict[str, str], tmp_path: Path
) -> None:
    """`gh:org/mailroom` at first, and later `mailroom`, the name of the clone in ~/.cookiecutters."""
    for number, name in enumerate(("gh:org/mailroom", "mailroom")):
        options = ("--no-input", "--checkout", TAG, "--output-dir", tmp_path / f"made {number}")
        succeed(COOKIECUTTER, *options, name, cwd=tmp_path, env=network)
    project = under_git(tmp_path / "made 1" / "shop")
    assert origin(tmp_path / "made 0" / "shop") == (TAG, "gh:org/mailroom")
    assert origin(project) == (TAG, f"{HTTPS}org/mailroom.git")

    succeed(COPIER, *UPDATE, cwd=project, env=network)
    assert origin(project) == (LATEST, f"{HTTPS}org/mailroom.git")


@pytest.mark.parametrize("name", ["gh:org/mailroom", f"{SSH}org/mailroom.git"], ids=["short name", "ssh"])
def test_copier_finds_an_address_again(network: dict[str, str], tmp_path: Path, name: str) -> None:
    project = tmp_path / "shop"
    succeed(COPIER, "copy", "--quiet", "--defaults", "--vcs-ref", NEXT, name, project, cwd=tmp_path, env=network)
    assert origin(project) == (NEXT, name)
    assert LATEST[1:] in run(COPIER, "check-update", project, cwd=tmp_path, env=network).stdout


def test_a_project_from_between_two_releases_waits_for_the_next_and_is_told_so(
    versions: Path, by_cookiecutter: Render, copier: Copier, engines_home: dict[str, str], tmp_path: Path
) -> None:
    """From a branch that is checked out. Other answers are taken meanwhile, as its answers file says (FAULTS F20)."""
    template = Path(shutil.copytree(versions, tmp_path / "template"))
    git("checkout", "--quiet", "-b", "work", LATEST, cwd=template)
    commit(template, "Between", "--allow-empty")
    project = under_git(by_cookiecutter(tmp_path / "made", source=template))

    refused = run(COPIER, *UPDATE, cwd=project, env=engines_home)
    assert refused.stdout.splitlines()[0].startswith("You are downgrading from 0.3.0.post1")
    told = re.search("only `copier (.*)` takes other answers", (project / ".copier-answers.yml").read_text("utf-8"))
    assert told
    copier(*told[1].split(), "--quiet", "--defaults", "--data", "description=Ours", cwd=project)
    assert "pyproject.toml" in changed(project)
    commit(project, "Other answers")

    release(template, "v0.4.0")
    copier(*UPDATE, cwd=project)
    assert changed(project) == {".copier-answers.yml", "src/mailroom/version.py"}
    assert "Made between" not in (project / ".copier-answers.yml").read_text("utf-8")


def test_what_was_not_committed_when_a_project_was_made_is_an_edit_of_the_projects(
    versions: Path, by_copier: Render, copier: Copier, tmp_path: Path
) -> None:
    """Copier makes a project from a commit that it throws away; recorded is the one before, which can be found."""
    template = Path(shutil.copytree(versions, tmp_path / "template"))
    inner = template / PROJECT.name
    replace(inner, {"src/mailroom/errors.py": ("for a reason of the message's own", "not committed")})
    before = by_copier(tmp_path / "made", source=template)
    project = under_git(before)
    assert origin(project) == (git("rev-parse", TAG, cwd=template), str(template))

    copier(*UPDATE, cwd=project)
    errors = (project / "src/mailroom/errors.py").read_text(encoding="utf-8")
    assert "not committed" in errors
    assert f"# {LATEST}" in errors


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (("template.zip",), "To be able to\n# update, replace the line below by these two and commit"),
        (("template", "--accept-hooks", "no"), "Make the project again, with the hooks or with copier."),
    ],
    ids=["zip", "without hooks"],
)
def test_a_project_of_unknown_origin_says_what_to_do(
    versions: Path, engines_home: dict[str, str], tmp_path: Path, made: tuple[str, ...], told: str
) -> None:
    git("archive", "--prefix=template/", "--output", tmp_path / "template.zip", "HEAD", cwd=versions)
    git("clone", "--quiet", versions, tmp_path / "template", cwd=tmp_path)
    succeed(COOKIECUTTER, "--no-input", *made, cwd=tmp_path, env=engines_home)
    project = under_git(tmp_path / "shop")
    refused = run(COPIER, *UPDATE, cwd=project, env=engines_home)
    assert refused.returncode == 1
    assert refused.stdout.splitlines()[-1].endswith("cannot obtain old template references from `.copier-answers.yml`.")
    assert "Traceback" not in refused.stdout
    assert told in (project / ".copier-answers.yml").read_text(encoding="utf-8")


def repaired(project: Path, key: str, value: str) -> None:
    """As the answers file and the page say: the line is edited by hand, and committed."""
    answers = project / ".copier-answers.yml"
    text, count = re.subn(rf"^{key}: .*$", f"{key}: '{value}'", answers.read_text("utf-8"), flags=re.MULTILINE)
    assert count == 1
    answers.write_text(text, encoding="utf-8")
    commit(project, "Its origin")


def test_a_commit_that_is_gone_and_a_folder_that_has_moved_are_told_by_the_words_that_copier_ends_with(
    versions: Path, by_cookiecutter: Render, copier: Copier, engines_home: dict[str, str], tmp_path: Path
) -> None:
    """Both are copier's tracebacks, before it reads anything of the template. The repairs lead to an update."""
    page = (ROOT / "docs" / "living-with-the-template.md").read_text(encoding="utf-8")
    template = Path(shutil.copytree(versions, tmp_path / "template"))
    commit(template, "On a branch", "--allow-empty")
    project = under_git(by_cookiecutter(tmp_path / "made", source=template))
    note = (project / ".copier-answers.yml").read_text(encoding="utf-8")

    git("reset", "--quiet", "--hard", TAG, cwd=template)
    git("reflog", "expire", "--expire=now", "--all", cwd=template)
    git("gc", "--quiet", "--prune=now", cwd=template)
    gone = run(COPIER, *UPDATE, cwd=project, env=engines_home).stdout.splitlines()[-1]
    assert re.sub("'.*'", "'…'", gone) in page
    assert '"Unknown revision", a\n# rebase' in note
    assert "Unknown revision" in gone
    repaired(project, "_commit", TAG)

    template.rename(tmp_path / "elsewhere")
    moved = run(COPIER, *UPDATE, cwd=project, env=engines_home).stdout.splitlines()[-1]
    assert moved in page
    assert f'"{moved.removeprefix("ValueError: ").removesuffix(".")}"' in note
    repaired(project, "_src_path", str(tmp_path / "elsewhere"))

    copier(*UPDATE, cwd=project)
    assert origin(project) == (LATEST, str(tmp_path / "elsewhere"))
