"""What commands say when Ctrl-C ended their work between two batches (contract A1)."""

from collections.abc import Callable
from typing import TypeVar

import typer

from mailroom.cli.long_work import Interrupted, LongWork
from mailroom.cli.output import as_json, say

T = TypeVar("T")

INTERRUPTED = 130
"""How shells count an end by Ctrl-C."""


def interruptible(bar: LongWork, work: Callable[[], T], done: str, counted: Callable[[int], str], *, json: bool) -> T:
    """What `work` returns. If it was interrupted, says how much is done, and exits.

    `done` is the word for it, as in "replayed"; `counted` says how many of what.
    """
    try:
        return work()
    except (Interrupted, KeyboardInterrupt):
        if json:
            as_json({done: bar.done, "interrupted": True})
        else:
            say(f"interrupted: {counted(bar.done)} {done}; the others are as they were")
        raise typer.Exit(INTERRUPTED) from None
