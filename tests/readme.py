"""The commands that a README shows, so that a test can run them as its reader would (FAULTS F23)."""

import re
from pathlib import Path

FENCE = re.compile(r"^```(?:console|sh|bash|shell)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(readme: Path, section: str | None = None) -> list[str]:
    """Every command of the shell blocks, in order; `section` names one heading to look under.

    A leading `$ ` is the prompt. In a block that has prompts, the other lines are output; without any, each line is a
    command. Comment lines are left out and lines that end in a backslash continue.
    """
    text = readme.read_text(encoding="utf-8")
    if section is not None:
        parts = re.split(r"^(#+ .*)$", text, flags=re.MULTILINE)
        text = next(after for heading, after in zip(parts[1::2], parts[2::2], strict=True)
                    if heading.lstrip("# ") == section)  # fmt: skip
    found: list[str] = []
    for block in FENCE.findall(text):
        lines = block.replace("\\\n", " ").splitlines()
        prompted = any(line.startswith("$ ") for line in lines)
        found += [
            line.removeprefix("$ ").strip()
            for line in lines
            if line.strip() and not line.startswith("#") and (line.startswith("$ ") or not prompted)
        ]
    return found
