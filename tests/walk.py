"""Walks through a page as its reader would: writes its files, applies its diffs, runs its commands (FAULTS F23).

Output is compared word by word, so that it may be wrapped differently; uuids, times, measured seconds and the names of
new migrations are masked, since they differ from run to run.
"""

import configparser
import difflib
import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import yaml
from checkout import run
from pages import LEFT_OUT, Block, PageError, blocks, steps

BIN = Path(sys.executable).parent

MASKS = {
    "<uuid>": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "<time>": re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?"),
    "": re.compile(r" in \d+\.\d+s\b( \(\d+:\d\d:\d\d\))?"),  # how long pytest took need not be shown
    "<seconds>": re.compile(r"\b\d+\.\d+ ?(s|seconds)\b"),
    "<revision>": re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{12}(?=\b|_)"),
}


class Walk:
    """One reader's way through a page, from a folder on. `environment` is what their shell has."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = environment

    @property
    def environment(self) -> dict[str, str]:
        """What a command typed now finds: the project's own sources, and no repository of git above its folder."""
        here = {"GIT_CEILING_DIRECTORIES": str(self.folder.parent), "PYTHONPATH": str(self.folder / "src")}
        return {**here, **self._environment}

    def take(self, page: Path, sections: Callable[[str], bool] = lambda heading: True) -> None:
        """Does what the page says, in order. Raises PageError where something else comes of it."""
        for block in blocks(page.read_text(encoding="utf-8"), page.name):
            if sections(block.heading):
                self.do(block)

    def do(self, block: Block) -> None:
        """One block. What is not run, and text that is only shown, is passed by."""
        if block.not_run is not None:
            return
        if block.language in PARSERS:
            _parse(block)
        if block.file is not None:
            self._write(block, block.file)
        elif block.language == "diff":
            self._apply(block)
        elif block.language == "console":
            self._type(block)
        elif block.language == "python":
            self._expect(block, block.line, ["python", "-c", block.text], 0, said_as="the script")

    def _write(self, block: Block, name: str) -> None:
        path = (self.folder / name).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise PageError(f"{block.page}:{block.line}: {name} is not in the project")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")

    def _apply(self, block: Block) -> None:
        patch = self.folder.parent / "page.diff"
        patch.write_text(block.text, encoding="utf-8")
        self._expect(block, block.line, ["git", "apply", "--verbose", str(patch)], 0, said_as="git apply")

    def _type(self, block: Block) -> None:
        listed = steps(block)
        if not listed:
            raise PageError(f"{block.page}:{block.line}: a console block without a command")
        for step in listed:
            if (words := shlex.split(step.command, posix=True))[0] == "cd":
                self._go(block, step.line, words)
                continue
            code = block.exit_code if step is listed[-1] else 0
            printed = self._expect(block, step.line, ["sh", "-c", step.command], code, said_as=step.command)
            if step.shown and not shows(printed, step.shown):
                raise PageError(
                    f"{block.page}:{step.line}: {step.command}\n"
                    f"does not print what is shown (- expected, + got):\n{_difference(step.shown, printed)}"
                )

    def _go(self, block: Block, line: int, words: Sequence[str]) -> None:
        there = self.folder.joinpath(*words[1:]).resolve()
        if len(words) != 2 or not there.is_dir():
            raise PageError(f"{block.page}:{line}: `{' '.join(words)}` leads nowhere from {self.folder}")
        self.folder = there

    def _expect(self, block: Block, line: int, command: Sequence[str], code: int, *, said_as: str) -> str:
        done = run(*command, cwd=self.folder, env=self.environment)
        if done.returncode != code:
            raise PageError(
                f"{block.page}:{line}: {said_as}\nexpected exit code {code}, got {done.returncode}:\n{done.stdout}"
            )
        return done.stdout


def shows(printed: str, shown: Iterable[str]) -> bool:
    """Whether all that was printed is shown; a line of three dots stands for any number of lines."""
    words = _words(printed.splitlines())
    parts: list[list[str]] = [[]]
    for line in shown:
        if line.strip() == LEFT_OUT:
            parts.append([])
        else:
            parts[-1] += _words([line])
    if len(parts) == 1:
        return words == parts[0]
    first, *middle, last = parts
    if words[: len(first)] != first:
        return False
    at = len(first)
    for part in middle:
        starts = (start for start in range(at, len(words) + 1) if words[start : start + len(part)] == part)
        if (start := next(starts, None)) is None:
            return False
        at = start + len(part)
    return len(words) - len(last) >= at and words[len(words) - len(last) :] == last


def command_folder(folder: Path, *projects: str) -> Path:
    """A folder for the PATH with the commands of these projects, or of `shop`; and `uv run` without an install.

    `uv run X` runs X in the environment that is there. What else uv can do is refused.
    """
    folder.mkdir()
    scripts = {
        name: f'exec python -c "from {name}.cli import main; main(prog_name=\'{name}\')" "$@"'
        for name in projects or ("shop",)
    }
    scripts["uv"] = 'if [ "$1" != run ]; then echo "only uv run is there" >&2; exit 2; fi\nshift\nexec "$@"'
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    return folder


def shell(*folders: Path) -> dict[str, str]:
    """What a reader's shell has: those folders first on the PATH, and a terminal of 120 columns."""
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return {"PATH": path, "COLUMNS": "120", "PYTHONDONTWRITEBYTECODE": "1"}


def _words(lines: Iterable[str]) -> list[str]:
    text = "\n".join(lines)
    for mask, pattern in MASKS.items():
        text = pattern.sub(mask, text)
    return text.split()


def _difference(shown: Sequence[str], printed: str) -> str:
    return "\n".join(difflib.ndiff([line.rstrip() for line in shown], [line.rstrip() for line in printed.splitlines()]))


def _ini(text: str) -> None:
    configparser.ConfigParser(interpolation=None).read_string(
        text if text.lstrip().startswith("[") else f"[top]\n{text}"
    )


PARSERS: dict[str, Callable[[str], object]] = {
    "toml": tomllib.loads,
    "json": json.loads,
    "ini": _ini,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}


def _parse(block: Block) -> None:
    try:
        PARSERS[block.language](block.text)
    except (ValueError, configparser.Error, yaml.YAMLError) as error:
        raise PageError(f"{block.page}:{block.line}: this is no {block.language}: {error}") from error
