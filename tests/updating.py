"""A template with three versions, projects that are born from one of them, and what an update may do to those."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from checkout import PATH, PROJECT, ROOT, TAG, git, run, source_files, succeed, tree
from packaging.version import Version

Copier = Callable[..., str]
BIN = Path(sys.executable).parent
COPIER, COOKIECUTTER = BIN / "copier", BIN / "cookiecutter"
UPDATE = ("update", "--quiet", "--defaults")
NEXT, LATEST = "v0.2.0", "v0.3.0"
USERS = re.compile(r"src/(?!mailroom(/|$))|tests/(?!mailroom(/|$))|migrations/versions/(?!0001_)")

# What the next version changes of each kind of file: of the framework, shared, and what is the user's from birth on.
OF_THE_TEMPLATE = (
    "src/mailroom/errors.py",
    "tests/mailroom/support.py",
    "migrations/env.py",
)
SHARED = {
    "pyproject.toml": ('"structlog>=25.5,', '"structlog>=25.5.0,'),
    "settings.toml": ("# batch_size = 100\n", "# batch_size = 120\n"),
    "README.md": ("## Updates\n", "## How to update\n"),
}
OF_THE_USER = (
    "src/{{cookiecutter.package_name}}/__init__.py",
    "src/{{cookiecutter.package_name}}/orders/handlers.py",
    "tests/test_orders.py",
    "migrations/versions/0002_orders.py",
)


@dataclass(frozen=True)
class Life:
    """A project as it came, and a copy of it under git that an update has changed; the change is not committed."""

    born: Path
    updated: Path


def replace(folder: Path, edits: Mapping[str, tuple[str, str]]) -> None:
    """Replace text in files. It has to be there, so that no test is about an edit that was not made."""
    for name, (old, new) in edits.items():
        text = (folder / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name} does not hold {old!r} once"
        (folder / name).write_text(text.replace(old, new), encoding="utf-8")


def append(folder: Path, names: Iterable[str], line: str) -> None:
    for name in names:
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def commit(folder: Path, message: str, *options: str) -> None:
    git("add", "--all", cwd=folder)
    git("commit", "--quiet", "--message", message, *options, cwd=folder)


def release(template: Path, version: str) -> None:
    """Commit what was changed as a version."""
    inner = template / PROJECT.name
    named = inner / "src/mailroom/version.py"
    before = named.read_text(encoding="utf-8")
    after, count = re.subn(r'^VERSION = ".*"$', f'VERSION = "{version[1:]}"', before, flags=re.MULTILINE)
    assert count == 1
    named.write_text(after, encoding="utf-8")
    commit(template, version)
    git("tag", version, cwd=template)


def add_versions(template: Path) -> None:
    """On top of TAG, NEXT and LATEST: files change, one comes, one goes. TAG is checked out, as on the day of birth."""
    inner = template / PROJECT.name
    append(inner, (*OF_THE_TEMPLATE, *OF_THE_USER), f"\n\n# {NEXT}")
    replace(inner, SHARED)
    (inner / "src/mailroom/outbox/arrival.py").write_text('"""Came with an update."""\n', encoding="utf-8")
    (inner / "src/{{cookiecutter.package_name}}/orders/arrival.py").touch()
    (inner / "tests/mailroom/test_gate.py").unlink()
    release(template, NEXT)
    append(inner, OF_THE_TEMPLATE[:1], f"# {LATEST}")
    replace(inner, {"settings.toml": ("# max_attempts = 5\n", "# max_attempts = 6\n")})
    release(template, LATEST)
    git("checkout", "--quiet", TAG, cwd=template)


def with_every_release(repository: Path, into: Path) -> tuple[Path, list[str]]:
    """A clone of the repository in which the working tree is one more release, the newest; and the earlier ones."""
    template = into / "template"
    git("clone", "--quiet", repository, template, cwd=into)
    earlier = sorted(git("tag", "--list", "v*", cwd=template).split(), key=Version)
    git("rm", "-r", "--quiet", ".", cwd=template)
    for name in source_files():
        (template / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, template / name)
    release(template, f"v{Version(earlier[-1]).major + 1}.0.0")
    return template, earlier


def under_git(project: Path) -> Path:
    """As the README says: `git init` and a first commit."""
    git("init", "--quiet", cwd=project)
    commit(project, "As it came")
    return project


def own_copy(project: Path, into: Path) -> Path:
    return under_git(Path(shutil.copytree(project, into / "shop")))


def without_history(project: Path, into: Path) -> Path:
    """A copy that a test may work in, as it comes from an archive."""
    return Path(shutil.copytree(project, into / "shop", ignore=shutil.ignore_patterns(".git")))


def changed(project: Path) -> set[str]:
    """The paths of what is not committed."""
    git("add", "--all", "--intent-to-add", cwd=project)
    return {*git("diff", "HEAD", "--name-only", "--no-renames", cwd=project).splitlines()}


def origin(project: Path) -> tuple[str | None, str | None]:
    """Which version of which template the answers file names."""
    answers = yaml.safe_load((project / ".copier-answers.yml").read_text(encoding="utf-8"))
    return answers.get("_commit"), answers.get("_src_path")


def without_git(project: Path) -> dict[str, tuple[int, bytes]]:
    return {name: file for name, file in tree(project).items() if name.split("/")[0] != ".git"}


def contents(project: Path) -> dict[str, bytes]:
    """Every file but git's own, and what is made by running the project."""
    return {
        path.relative_to(project).as_posix(): path.read_bytes()
        for path in project.rglob("*")
        if path.is_file() and not {".git", "__pycache__"} & set(path.parts) and not path.name.startswith("shop.db")
    }


def updated(before: Path, fresh: Path) -> dict[str, tuple[int, bytes]]:
    """What an update makes of a clean project: the user's files as they were, all others as in a fresh project."""
    users = {name: file for name, file in tree(before).items() if USERS.match(name)}
    return users | {name: file for name, file in tree(fresh).items() if not USERS.match(name)}


def shop_says(project: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """The project's command, in the one environment."""
    command = (sys.executable, "-c", "from shop.cli import main; main()", *arguments)
    return run(*command, cwd=project, env=environment(project) | {"COLUMNS": "300", **variables})


def shop(project: Path, *arguments: str, **variables: str) -> None:
    """It must succeed."""
    done = shop_says(project, *arguments, **variables)
    assert done.returncode == 0, done.stdout


def environment(project: Path) -> dict[str, str]:
    return {**PATH, "PYTHONPATH": str(project / "src")}


EVENTS = """
import asyncio
import sys

from sqlalchemy import func, select

from shop.app import create_mailroom
from shop.orders.models import Reservation
from shop.orders.service import place_order


async def handle(mailroom, count):
    async with mailroom.running(), asyncio.timeout(60):
        while True:
            async with mailroom.reader() as session:
                if await session.scalar(select(func.count()).select_from(Reservation)) == count:
                    return
            await asyncio.sleep(0.05)


async def main(what, count):
    mailroom = create_mailroom()
    await (place_order(mailroom, "tea", 2) if what == "store" else handle(mailroom, int(count)))
    await mailroom.close()


asyncio.run(main(*sys.argv[1:]))
"""


def store_an_event(project: Path, **variables: str) -> None:
    """Place an order, with the outbox on; nothing relays its event."""
    variables = {"MESSAGE_BUS__ENABLE_OUTBOX": "true", **variables}
    succeed(sys.executable, "-c", EVENTS, "store", "0", cwd=project, env=environment(project) | variables)


def handle_events(project: Path, count: int, **variables: str) -> None:
    """Run the service until so many events were handled in all."""
    variables = {"MESSAGE_BUS__ENABLE_OUTBOX": "true", **variables}
    succeed(sys.executable, "-c", EVENTS, "handle", str(count), cwd=project, env=environment(project) | variables)
