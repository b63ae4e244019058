"""Finishes what cookiecutter rendered: drops what was not chosen, and records where the project comes from.

Copier does both by itself. The answers come in as pre_gen_project.py explains.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from jinja2 import Environment

ANSWERS = json.loads(r"""{{ cookiecutter | tojson }}""")
ANSWERS_FILE = ".copier-answers.yml"
COPIER_CLONES = ("gh:", "gl:", "git@", "git://", "git+", "https://github.com/", "https://gitlab.com/")
REPOSITORY_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def template_folder() -> Path | None:
    """Where the template is. cookiecutter gives it as the user typed it, which may be relative to another folder."""
    typed = Path(ANSWERS["_repo_dir"]).expanduser()
    of_cookiecutter = Path(f"/proc/{os.getppid()}/cwd")  # it runs hooks from the template's folder
    guesses = [Path(os.environ.get("PWD", "/")) / typed, Path(ANSWERS["_output_dir"]) / typed]
    for candidates in ([typed] if typed.is_absolute() else [], [of_cookiecutter], guesses):
        found = {folder.resolve() for folder in candidates if (folder / "copier.yml").is_file()}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def rendered(text: str, **names: object) -> str:
    """The text as copier renders it for a new project."""
    jinja = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    jinja.filters.update(expanduser=os.path.expanduser, realpath=os.path.realpath)
    return jinja.from_string(text).render(ANSWERS, _copier_operation="copy", **names)


def drop_what_is_excluded(project: Path, patterns: list[str]) -> None:
    """Remove what was not chosen, and caches: copier takes the template from git, cookiecutter takes the folder."""
    for pattern in filter(None, map(rendered, patterns)):
        anchored = pattern.startswith("/")
        for path in list(project.glob(pattern[1:]) if anchored else project.rglob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def git(folder: Path, *arguments: str) -> str | None:
    """What git says about the folder; None if there is no git, or it is no repository."""
    environment = {name: value for name, value in os.environ.items() if name not in REPOSITORY_VARIABLES}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, env=environment
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def source(template: Path) -> str | None:
    """The template as copier finds it again from any folder: a full path, or a URL that copier understands."""
    typed = ANSWERS["_template"]
    if Path(typed).expanduser().is_absolute() or ANSWERS["_repo_dir"] == typed:
        return str(template)
    is_address = typed.startswith(COPIER_CLONES) or "://" in typed
    address = typed if is_address else git(template, "config", "remote.origin.url")  # only cookiecutter knows bb:
    if not address or address.startswith(COPIER_CLONES) or address.endswith(".git"):
        return address
    return f"git+{address}"


def commit(template: Path) -> str | None:
    """The template's commit, by tag where there is one, never a branch; None if it is no repository of its own."""
    root = git(template, "rev-parse", "--show-toplevel")
    if root is None or Path(root).resolve() != template:
        return None
    return git(template, "describe", "--tags", "--always")


def origin(template: Path) -> dict[str, str]:
    """Commit and source, as copier calls them; nothing where they cannot be known."""
    found = {"_commit": commit(template), "_src_path": source(template)}
    return {key: value for key, value in found.items() if value} if all(found.values()) else {}


def record(project: Path, template: Path, origin: dict[str, str]) -> None:
    """Write the answers file again: cookiecutter rendered it as if there were no hooks."""
    text = (template / "{% raw %}{{cookiecutter.project_slug}}{% endraw %}" / ANSWERS_FILE).read_text(encoding="utf-8")
    answers = rendered(text, _copier_answers=origin, cookiecutter=ANSWERS)
    (project / ANSWERS_FILE).write_bytes(answers.encode())


def notes(template: Path, origin: dict[str, str], message: str) -> Iterator[str]:
    """What the user should know."""
    yield rendered(message, _copier_answers=origin)
    if not origin:
        yield f"Note: the template is no git repository of its own; before you update, see {ANSWERS_FILE}."
    elif git(template, "status", "--porcelain"):
        yield f"Note: the template has uncommitted changes; this project is recorded as made from {origin['_commit']}."


project, template = Path.cwd(), template_folder()
if template is None:
    sys.exit("The template's folder cannot be found from here; give cookiecutter its full path.")
copier = yaml.safe_load((template / "copier.yml").read_text(encoding="utf-8"))
drop_what_is_excluded(project, copier["_exclude"])
known = origin(template)
record(project, template, known)
print("\n".join(notes(template, known, copier["_message_after_copy"])), file=sys.stderr)
