"""What a rendered project says in its files about what it runs on."""

import re
from pathlib import Path
from string import Template
from typing import Any

import yaml

SPEAK_OF_IT = ("README.md", "settings.toml", ".env.example", ".github/workflows/ci.yml", "Dockerfile", "compose.yaml")
"""Where a database or a broker is spoken of."""


def read(project: Path, name: str) -> str:
    path = project / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def variables(project: Path) -> dict[str, str]:
    """What is set by a copy of .env.example."""
    lines = read(project, ".env.example").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))  # type: ignore[misc]


def compose(project: Path) -> dict[str, Any]:
    """What compose.yaml runs, with the variables of .env.example in it."""
    text = re.sub(r"\$\{(\w+):\?[^}]*\}", r"${\1}", read(project, "compose.yaml"))
    return dict(yaml.safe_load(Template(text).substitute(variables(project))))


def ci(project: Path) -> dict[str, Any]:
    """The job of the workflow that runs the tests."""
    return dict(yaml.safe_load(read(project, ".github/workflows/ci.yml"))["jobs"]["test"])
