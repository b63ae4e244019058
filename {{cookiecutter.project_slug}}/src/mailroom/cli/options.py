"""Options that several commands share, and how their values are read."""

import re
from datetime import timedelta
from typing import Annotated

import typer

from mailroom.outbox.selection import State

_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def age(text: str) -> timedelta:
    """`90s`, `15m`, `2h` or `7d`. Raises BadParameter for anything else."""
    found = _AGE.fullmatch(text.strip())
    try:
        if found:
            return timedelta(seconds=float(found[1]) * _SECONDS[found[2]])
    except OverflowError:
        pass
    raise typer.BadParameter(f"{text!r} is no age; write it like 90s, 15m, 2h or 7d")


def examples(name: str, *commands: str) -> str:
    """The end of a help text: commands that can be copied, one on each line."""
    return "\n\n".join(["Examples:", *(f"{name} {command}" for command in commands)])


DataSource = Annotated[
    str, typer.Option("--data-source", metavar="NAME", help="Which data source: `default`, or a name of data_sources.")
]
EverySource = Annotated[
    str | None, typer.Option("--data-source", metavar="NAME", help="Only this data source; unset: every one.")
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, for machines.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for a confirmation.")]
Payload = Annotated[bool, typer.Option("--payload", help="With the payload, which may be private.")]
EventType = Annotated[str | None, typer.Option("--event-type", help="Only events of this name.")]
OrderingKey = Annotated[str | None, typer.Option("--ordering-key", help="Only events with this ordering key.")]
OlderThan = Annotated[
    timedelta | None,
    typer.Option("--older-than", parser=age, metavar="AGE", help="Only events that occurred longer ago, such as 2h."),
]
InState = Annotated[State | None, typer.Option("--state", help="Only rows in this state.")]
