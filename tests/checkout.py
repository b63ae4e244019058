"""The working tree under test, and commands to try on it."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from mailroom.version import VERSION

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "{{cookiecutter.project_slug}}"
TAG = f"v{VERSION}"
TOKENS = re.compile(r"\{\{|\{%|\{#")  # what opens a Jinja block

PATH = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
# For an environment of its own, made as a user's is. The Python is this one, and none is downloaded.
FRESH = {**PATH, "UV_PYTHON": sys.executable, "UV_PYTHON_DOWNLOADS": "never"}
# For pre-commit; what its hooks need is made from PyPI, once.
HOOKS = {**FRESH, "PRE_COMMIT_HOME": str(ROOT / ".cache" / "pre-commit")}
LINTERS = [
    ("ruff", "check", "--no-cache"),
    ("ruff", "format", "--check", "--no-cache"),
    ("mypy", "--strict", "src"),
    ("lint-imports", "--no-cache"),
    ("hadolint", "Dockerfile"),
]
"""What a project's README calls its linters, without caches in its folder."""
SOMEBODY = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in {"NAME": "Tester", "EMAIL": "tester@example.com"}.items()
}

Answers = Mapping[str, str]
Render = Callable[..., Path]
ProjectOn = Callable[..., Path]


def run(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, both streams in `stdout`, without the variables that lead git or uv astray."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "COPIER_", "VIRTUAL_ENV", "PYTEST_"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        check=False,
    )


def succeed(*command: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Like run, and the command must succeed; return what it said."""
    done = run(*command, cwd=cwd, env=env)
    assert done.returncode == 0, f"{' '.join(map(str, command))} failed:\n{done.stdout}"
    return done.stdout


def git(*arguments: str | Path, cwd: Path) -> str:
    identity = ("-c", "user.name=Tester", "-c", "user.email=tester@example.com")
    return succeed("git", *identity, *arguments, cwd=cwd).strip()


def source_files() -> list[Path]:
    """Every file that belongs to the template, relative to its root: known to git, or new and not ignored."""
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT).split("\0")
    return sorted({Path(name) for name in listed if name and (ROOT / name).exists()})


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file of a folder: its name, mode and contents; and every folder, with its mode."""
    return {
        path.relative_to(folder).as_posix(): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }
