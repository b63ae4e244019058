"""Refuses bad answers, before cookiecutter writes a file: by the validators of copier.yml, so that both engines agree.

cookiecutter renders this file before it runs it. The answers come in as JSON, all of it ASCII and never holding three
quotes in a row, so no answer can end the string below.
"""

import json
import os
import sys
from pathlib import Path

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

ANSWERS = json.loads(r"""{{ cookiecutter | tojson }}""")


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


def refusals(template: Path) -> list[str]:
    """What is wrong with the answers, one line each."""
    questions = yaml.safe_load((template / "copier.yml").read_text(encoding="utf-8"))
    jinja = Environment(
        loader=FileSystemLoader(template), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    reasons = {
        name: jinja.from_string(question["validator"]).render(ANSWERS).strip()
        for name, question in questions.items()
        if not name.startswith("_") and "validator" in question
    }
    return [f"{name} {reason}" for name, reason in reasons.items() if reason]


folder = template_folder()
if folder is None:
    sys.exit("The template's folder cannot be found from here; give cookiecutter its full path.")
if refused := refusals(folder):
    sys.exit("\n".join(["Nothing was written:", *(f"  {line}" for line in refused)]))
