"""`copier update`: the next version of the template reaches a project, whichever engine made it, and what its people
wrote stays (FAULTS F20, F21). Both engines are driven by their command lines.
"""

import re
import shutil
import sys
from pathlib import Path

import pytest
from checkout import HOOKS, PROJECT, ROOT, TAG, Render, git, run, succeed
from packaging.version import Version
from updating import (
    BIN,
    COPIER,
    LATEST,
    NEXT,
    OF_THE_TEMPLATE,
    SHARED,
    UPDATE,
    Copier,
    append,
    changed,
    commit,
    environment,
    own_copy,
    replace,
    shop,
    under_git,
    updated,
    with_every_release,
    without_git,
)

from mailroom.version import VERSION

MARKERS = "<<<<<<< before updating"


@pytest.fixture(scope="session")
def born(versions: Path, by_cookiecutter: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default project, born from the first version. Tests only read it, or copy it."""
    return by_cookiecutter(tmp_path_factory.mktemp("born"), source=versions)


def test_check_update_says_whether_there_is_something_to_take(
    born: Path, engines_home: dict[str, str], tmp_path: Path
) -> None:
    project = own_copy(born, tmp_path)
    asked = run(COPIER, "check-update", "--quiet", project, cwd=tmp_path, env=engines_home)
    assert asked.returncode == 2
    replace(project, {".copier-answers.yml": (f"'{TAG}'", f"'{LATEST}'")})
    assert "up-to-date" in run(COPIER, "check-update", project, cwd=tmp_path, env=engines_home).stdout


# A project that was lived in


@pytest.fixture
def lived_in(born: Path, tmp_path: Path) -> Path:
    """With dependencies, settings and a module of its people, without the sample's migration and its demo."""
    project = Path(shutil.copytree(born, tmp_path / "shop"))
    replace(
        project,
        {
            "pyproject.toml": ('rich>=14,<16",\n    # Yours:\n', 'rich>=14,<16",\n    # Yours:\n    "httpx",\n'),
            "settings.toml": ("[health]\n# port = 8080 ", "[health]\nport = 8080 "),
            "src/mailroom/errors.py": ("for a reason of the message's own", "for a reason of its own"),
            "src/shop/app.py": ('command="shop"', 'command="shop",  # ours'),
            "src/shop/cli.py": ("from shop.orders.demo import demo\n", ""),
        },
    )
    replace(project, {"src/shop/cli.py": ("main.command()(demo)\n", "")})
    append(project, ["src/shop/orders/handlers.py", "tests/test_orders.py"], "# ours")
    (project / "src/shop/orders/demo.py").unlink()
    (project / "src/shop/parcels.py").write_text('"""Ours."""\n', encoding="utf-8")
    return under_git(project)


def test_what_its_people_wrote_stays_and_what_they_deleted_stays_away(lived_in: Path, copier: Copier) -> None:
    """Where they changed the lines that the template changes, both are there, marked: in the README. All works."""
    shop(lived_in, "db", "upgrade")
    replace(lived_in, {"README.md": ("## Updates\n", "## News\n")})
    commit(lived_in, "Another heading")

    copier(*UPDATE, "--vcs-ref", NEXT, cwd=lived_in)

    assert git("diff", "--name-only", "--diff-filter=U", cwd=lived_in) == "README.md"
    expected = {*OF_THE_TEMPLATE, *SHARED, ".copier-answers.yml", "src/mailroom/version.py"}
    assert changed(lived_in) == expected | {"src/mailroom/outbox/arrival.py", "tests/mailroom/test_gate.py"}
    errors = (lived_in / "src/mailroom/errors.py").read_text(encoding="utf-8")
    assert "for a reason of its own" in errors
    assert errors.endswith(f"# {NEXT}\n")
    project = (lived_in / "pyproject.toml").read_text(encoding="utf-8")
    assert '    "httpx",\n' in project
    assert SHARED["pyproject.toml"][1] in project
    settings = (lived_in / "settings.toml").read_text(encoding="utf-8")
    assert "\nport = 8080 " in settings
    assert SHARED["settings.toml"][1] in settings
    both = f"{MARKERS}\n## News\n=======\n## How to update\n>>>>>>> after updating\n"
    assert both in (lived_in / "README.md").read_text(encoding="utf-8")

    git("add", "--all", cwd=lived_in)  # says that it is resolved
    hook = run(BIN / "pre-commit", "run", "check-merge-conflict", cwd=lived_in, env=HOOKS)
    assert "README.md:" in hook.stdout
    assert hook.returncode == 1

    shop(lived_in, "db", "check")
    tests = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ignore=tests/mailroom")
    for command in (tests, (BIN / "ruff", "check", "--no-cache"), (BIN / "lint-imports", "--no-cache")):
        succeed(*command, cwd=lived_in, env=environment(lived_in))


def test_a_tree_that_is_not_clean_is_refused_and_left_alone(lived_in: Path, engines_home: dict[str, str]) -> None:
    append(lived_in, ["README.md"], "not committed")
    refused = run(COPIER, *UPDATE, cwd=lived_in, env=engines_home)
    assert refused.returncode == 1
    assert refused.stdout.splitlines() == [
        "Destination repository is dirty; cannot continue. Please commit or stash your local changes and retry."
    ]
    assert changed(lived_in) == {"README.md"}


# Versions


def test_the_newest_version_in_the_changelog_is_mailrooms_and_each_says_what_to_do_after_updating() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.split(r"^## ", changelog, flags=re.MULTILINE)[1:]
    assert versions[0].split()[0] == VERSION
    assert Version(VERSION).public == VERSION
    assert [text.split()[0] for text in versions if "### After updating\n" not in text] == []


def test_a_tag_is_the_version_of_mailroom_that_it_holds() -> None:
    """Those that are here: a copy of the repository without its tags has nothing to compare."""
    for tag in git("tag", "--list", "v*", cwd=ROOT).split():
        held = git("show", f"{tag}:{PROJECT.name}/src/mailroom/version.py", cwd=ROOT)
        assert f'VERSION = "{tag[1:]}"' in held.splitlines()


def test_from_every_earlier_release_an_update_leads_to_what_the_working_tree_makes(
    versions: Path, by_copier: Render, copier: Copier, tmp_path: Path
) -> None:
    """From those of this repository, and while it has none, from three that are made."""
    repository = ROOT if git("tag", "--list", "v*", cwd=ROOT) else versions
    template, earlier = with_every_release(repository, tmp_path)
    assert earlier
    fresh = by_copier(tmp_path / "fresh", source=template)
    for release in earlier:
        before = by_copier(tmp_path / release, source=template, version=release)
        (tmp_path / f"updated {release}").mkdir()
        project = own_copy(before, tmp_path / f"updated {release}")
        copier(*UPDATE, project, cwd=tmp_path)
        assert without_git(project) == updated(before, fresh), release
