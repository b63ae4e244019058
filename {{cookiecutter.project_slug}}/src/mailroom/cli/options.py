"""Options that several commands share."""

from typing import Annotated

import typer


def examples(name: str, *commands: str) -> str:
    """The end of a help text: commands that can be copied, one on each line."""
    return "\n\n".join(["Examples:", *(f"{name} {command}" for command in commands)])


Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, for machines.")]
