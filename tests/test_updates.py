"""`copier update`: the next version of the template reaches a project, whichever engine made it, and what its people
wrote stays (FAULTS F20, F21). Both engines are driven by their command lines.
"""

import re
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from brokers import OwnNames
from checkout import HOOKS, PROJECT, ROOT, TAG, ProjectOn, Render, git, run, succeed
from packaging.version import Version
from updating import (
    BIN,
    LATEST,
    NEXT,
    OF_THE_TEMPLATE,
    SHARED,
    add_a_column,
    add_versions,
    append,
    changed,
    commit,
    contents,
    environment,
    handle_events,
    origin,
    own_copy,
    release,
    replace,
    shop,
    shop_says,
    store_an_event,
    under_git,
    updated,
    without_git,
)

from mailroom.version import VERSION

Copier = Callable[..., str]
COPIER, COOKIECUTTER = BIN / "copier", BIN / "cookiecutter"
UPDATE = ("update", "--quiet", "--defaults")
HTTPS, SSH = "https://github.com/", "git@github.com:"
MARKERS = "<<<<<<< before updating"


@pytest.fixture(scope="session")
def versions(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template with three versions; the first of them is checked out."""
    folder = Path(shutil.copytree(template, tmp_path_factory.mktemp("versions") / "template"))
    add_versions(folder)
    return folder


@pytest.fixture
def copier(engines_home: dict[str, str]) -> Copier:
    """`copier(*arguments, cwd=…)`: its command line, which must succeed."""

    def succeeds(*arguments: str | Path, cwd: Path) -> str:
        return succeed(COPIER, *arguments, cwd=cwd, env=engines_home)

    return succeeds


@pytest.fixture(scope="session")
def fresh(
    versions: Path, engines_home: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """`fresh(**answers)`: what LATEST is on its day of birth. Tests only read it."""

    def made(**answers: str) -> Path:
        given = [part for name, value in answers.items() for part in ("--data", f"{name}={value}")]
        folder = tmp_path_factory.mktemp("fresh") / "shop"
        succeed(COPIER, "copy", "--quiet", "--defaults", *given, versions, folder, cwd=folder.parent, env=engines_home)
        return folder

    return made


@pytest.fixture(scope="session")
def born(versions: Path, by_cookiecutter: Render, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default project, born from the first version. Tests only read it, or copy it."""
    return by_cookiecutter(tmp_path_factory.mktemp("born"), source=versions)


# A clean project


@pytest.mark.parametrize(
    ("engine", "answers"),
    [
        ("by_cookiecutter", {"database": "sqlserver"}),
        ("by_copier", {"database": "postgres", "transport": "rabbitmq"}),
    ],
    ids=["cookiecutter, SQL Server", "copier, PostgreSQL and RabbitMQ"],
)
def test_it_takes_two_versions_at_once_and_touches_nothing_of_the_users(
    request: pytest.FixtureRequest,
    versions: Path,
    fresh: Callable[..., Path],
    copier: Copier,
    tmp_path: Path,
    engine: str,
    answers: dict[str, str],
) -> None:
    """Made from a relative path, in one folder, and updated from another; and then it is what a fresh one is."""
    render: Render = request.getfixturevalue(engine)
    into = versions.parent / tmp_path.name
    into.mkdir()
    before = render(into, source=f"../{versions.name}", cwd=into, **answers)
    project = under_git(Path(shutil.copytree(before, tmp_path / "shop")))

    copier(*UPDATE, project, cwd=tmp_path)

    assert without_git(project) == updated(before, fresh(**answers))
    assert changed(project) == {
        *OF_THE_TEMPLATE,
        *SHARED,
        ".copier-answers.yml",
        "src/mailroom/version.py",
        "src/mailroom/outbox/arrival.py",
        "tests/mailroom/test_gate.py",
    }


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


# Another answer


def answer(project: Path, copier: Copier, given: str) -> None:
    commit(project, "Before", "--allow-empty")
    copier(*UPDATE, "--data", given, cwd=project)


def test_another_transport_keeps_the_database_and_relays_what_was_stored_before_and_so_does_the_way_back(
    shop_on: ProjectOn, own_shop: Path, copier: Copier, own_names: OwnNames
) -> None:
    """As mailroom says where the settings name a transport that the project was made without. No migration appears."""
    before, with_broker = contents(own_shop), contents(shop_on("sqlite", "rabbitmq"))
    shop(own_shop, "db", "upgrade")
    store_an_event(own_shop)

    answer(under_git(own_shop), copier, "transport=rabbitmq")
    assert contents(own_shop) == with_broker
    shop(own_shop, "db", "check")
    broker = own_names.variables()
    handle_events(own_shop, 1, **broker)
    store_an_event(own_shop, **broker)

    answer(own_shop, copier, "transport=in_process")
    assert contents(own_shop) == before
    handle_events(own_shop, 2)


def test_another_database_runs_the_same_code_and_the_way_back_finds_the_old_one_as_it_was(
    shop_on: ProjectOn, own_shop: Path, copier: Copier, postgres_url: str
) -> None:
    """As mailroom says where it finds a URL of a database that the project was made without."""
    before, on_postgres = contents(own_shop), contents(shop_on("postgres"))
    shop(own_shop, "db", "upgrade")
    store_an_event(own_shop)

    answer(under_git(own_shop), copier, "database=postgres")
    assert contents(own_shop) == on_postgres
    url = {"DATABASE__URL": postgres_url}
    shop(own_shop, "db", "upgrade", **url)
    shop(own_shop, "db", "check", **url)
    store_an_event(own_shop, **url)
    handle_events(own_shop, 1, **url)

    answer(own_shop, copier, "database=sqlite")
    assert contents(own_shop) == before
    handle_events(own_shop, 1)


# A version that changes the tables


def columns(database: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT name, type, dflt_value FROM pragma_table_info('outbox_messages')").fetchall()


def test_a_version_that_changes_the_tables_is_one_command_and_nothing_starts_before_it(
    template: Path, by_copier: Render, own_shop: Path, copier: Copier, tmp_path: Path
) -> None:
    """Old databases, new ones of the old project, and those of a new project end up the same."""
    newer = Path(shutil.copytree(template, tmp_path / "template"))
    add_a_column(newer)
    replace(own_shop, {".copier-answers.yml": (f"'{template}'", f"'{newer}'")})
    shop(own_shop, "db", "upgrade")
    store_an_event(own_shop)
    copier(*UPDATE, under_git(own_shop), cwd=tmp_path)
    assert not any(name.startswith("migrations/") for name in changed(own_shop))

    todo = "run: shop db revision --framework, then shop db upgrade"
    for command in ("run", "doctor"):
        refused = shop_says(own_shop, command)
        assert refused.returncode == 1
        assert todo in refused.stdout
    assert f"mailroom {NEXT[1:]} " in refused.stdout
    says_so = "test_the_migrations_of_this_project_take_every_step_of_mailroom"
    tests = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/mailroom/test_schema.py", "-k")
    assert run(*tests, says_so, cwd=own_shop, env=environment(own_shop)).returncode == 1

    shop(own_shop, "db", "revision", "--framework")
    shop(own_shop, "db", "upgrade")
    shop(own_shop, "db", "check")
    succeed(*tests, says_so, cwd=own_shop, env=environment(own_shop))
    handle_events(own_shop, 1)
    assert changed(own_shop) >= {"migrations/versions/mailroom_2_add_origin.py"}

    shop(own_shop, "db", "upgrade", DATABASE__URL="sqlite+aiosqlite:///new.db")
    fresh = by_copier(tmp_path / "fresh", source=newer)
    shop(fresh, "db", "upgrade")
    old, *others = [columns(one) for one in (own_shop / "shop.db", own_shop / "new.db", fresh / "shop.db")]
    assert others == [old, old]
    assert ("origin", "VARCHAR(50)", None) in old


# Where the template is, and whether it had a tag


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
