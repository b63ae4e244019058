"""A Dockerfile built without an engine: each stage is a folder, and its steps run with the tools of this machine.

What is copied is what .dockerignore lets through. The last stage's own RUN steps are left out: they change the system
(users, folders of others). A folder of the image, such as /app, lies below the root that the image is built in.
"""

import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from string import Template

from checkout import succeed

CONTAINER_PATH = re.compile(r"(?<![\w.])/(?=(?:app|build|data)(?:[/:\s]|$))")
CACHE = re.compile(r"--mount=type=cache,\S+\s*")


class Image:
    """What building the project's Dockerfile below `folder` comes to."""

    def __init__(self, project: Path, folder: Path) -> None:
        self.root = folder / "root"
        self._folder = folder
        self._context = _context(project, folder / "context")
        succeed(sys.executable, "-m", "venv", folder / "python", cwd=folder)  # in place of the base image's Python
        self._stages: dict[str, Path] = {}
        self._name = ""
        self._reset()
        instructions = steps(project / "Dockerfile")
        last = max(number for number, (verb, _) in enumerate(instructions) if verb == "FROM")
        for number, (verb, text) in enumerate(instructions):
            if verb != "RUN":
                getattr(self, f"_{verb.lower()}", self._note)(verb, text)
            elif number < last:
                succeed("sh", "-c", self._here(CACHE.sub("", text)), cwd=self.workdir, env=self._tools())

    @property
    def command(self) -> list[str]:
        """What the container runs if nothing else is asked for."""
        return [*json.loads(self.noted["ENTRYPOINT"]), *json.loads(self.noted["CMD"])]

    @property
    def health_command(self) -> list[str]:
        return list(json.loads(self.noted["HEALTHCHECK"].partition(" CMD ")[2]))

    def program(self, name: str) -> str:
        """Where the PATH of the image finds it."""
        found = shutil.which(name, path=self.env["PATH"])
        assert found is not None, f"{name} is not in {self.env['PATH']}"
        return found

    def _reset(self) -> None:
        self.root.mkdir()
        self.workdir = self.root
        self.noted: dict[str, str] = {}
        self.env = {"PATH": f"{self._folder / 'python' / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"}

    def _from(self, _verb: str, text: str) -> None:
        """The stage before keeps its files elsewhere: each is built in the same place, which scripts remember."""
        if self._name:
            self._stages[self._name] = self.root.rename(self._folder / f"stage-{self._name}")
            self._reset()
        self._name = text.partition(" AS ")[2]

    def _env(self, _verb: str, text: str) -> None:
        for pair in shlex.split(text):
            name, _, value = pair.partition("=")
            self.env[name] = self._here(Template(value).substitute(self.env))

    def _workdir(self, _verb: str, text: str) -> None:
        self.workdir = self._path(text)
        self.workdir.mkdir(parents=True, exist_ok=True)

    def _volume(self, _verb: str, text: str) -> None:
        for name in json.loads(text):
            self._path(name).mkdir(parents=True)

    def _copy(self, _verb: str, text: str) -> None:
        *sources, into = shlex.split(text)
        folder = self._context
        if sources[0].startswith("--from="):
            folder = self._stages[sources.pop(0).removeprefix("--from=")]
        found = [path for pattern in sources for path in sorted(folder.glob(pattern.lstrip("/")))]
        assert found, f"COPY {text} finds nothing"
        for path in found:
            if path.is_dir():
                shutil.copytree(path, self._path(into), symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy(path, self._path(into))

    def _note(self, verb: str, text: str) -> None:
        self.noted[verb] = text

    def _path(self, text: str) -> Path:
        return self.root / text.lstrip("/") if text.startswith("/") else self.workdir / text

    def _here(self, text: str) -> str:
        return CONTAINER_PATH.sub(f"{self.root}/", text)

    def _tools(self) -> dict[str, str]:
        """The image's variables, with the cache of this machine, and with the Python that stands in for the image's."""
        own = {name: value for name, value in self.env.items() if name != "UV_CACHE_DIR"}
        return {"UV_PYTHON": str((self._folder / "python" / "bin" / "python").resolve()), **own}


def steps(dockerfile: Path) -> list[tuple[str, str]]:
    """The instructions with what follows them."""
    lines = [
        line
        for line in dockerfile.read_text(encoding="utf-8").splitlines()
        if line.strip() and not line.startswith("#")
    ]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [(verb, rest.strip()) for line in whole.splitlines() for verb, _, rest in [line.partition(" ")]]


def _context(project: Path, into: Path) -> Path:
    """What the builder gets of the project, whose .dockerignore lists what it lets through."""
    rules = [rule for rule in (project / ".dockerignore").read_text(encoding="utf-8").splitlines() if rule[:1] != "#"]
    everywhere = [rule.removeprefix("**/") for rule in rules if rule.startswith("**/")]
    kept = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    assert rules == ["*", *(f"!{name}" for name in kept), *(f"**/{name}" for name in everywhere)]
    into.mkdir()
    for name in kept:
        path = project / name
        if path.is_dir():
            shutil.copytree(path, into / name, ignore=shutil.ignore_patterns(*everywhere))
        elif path.exists():
            shutil.copy(path, into / name)
    return into
