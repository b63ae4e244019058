"""Which mailroom this is, and which one the project's answers file names (see `doctor`)."""

import re
from pathlib import Path

VERSION = "0.1.0"

ANSWERS = Path(".copier-answers.yml")
_TAG = re.compile(r"^_commit: '?v(\d+(?:\.\d+)*(?:(?:a|b|rc)\d+)?)'?$", re.MULTILINE)


def recorded() -> str | None:
    """The release that the answers file in the working directory names; None without one, or between two releases."""
    try:
        found = _TAG.search(ANSWERS.read_text(encoding="utf-8"))
    except OSError:
        return None
    return found[1] if found else None
