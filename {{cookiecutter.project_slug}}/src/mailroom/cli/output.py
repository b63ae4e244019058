"""How commands talk: tables for people, JSON for machines, errors on standard error."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from mailroom.errors import MailroomError


def say(*lines: str) -> None:
    """Prints text for people, wrapped at the width of their terminal."""
    for line in lines:
        Console().print(line, markup=False, highlight=False)


def as_json(value: Any) -> None:
    """Prints a value as one JSON document."""
    typer.echo(json.dumps(value, indent=2, default=str))


def table(columns: Sequence[str], lines: Iterable[Sequence[object]], *, stderr: bool = False) -> None:
    """Prints rows under headings. What does not fit is folded, never cut."""
    shown = Table(*(Column(name, overflow="fold") for name in columns), header_style="bold")
    for line in lines:
        shown.add_row(*("" if cell is None else Text(str(cell)) for cell in line))  # what is stored is no markup
    Console(stderr=stderr).print(shown)


def rows(count: int) -> str:
    """How many, in words."""
    return _counted(count, "row")


def messages(count: int) -> str:
    return _counted(count, "message")


def bindings(count: int) -> str:
    return _counted(count, "binding")


def _counted(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def has_terminal() -> bool:
    """Whether somebody is there to be asked."""
    return sys.stdin.isatty()


def confirm(question: str) -> None:
    """Goes on if the answer is yes, and exits with 1 if it is no. Asks on standard error, beside what is piped.

    Where nobody can be asked, it is refused.
    """
    if not has_terminal():
        refuse("nothing was changed: without a terminal nobody can confirm it; --yes goes on without asking")
    if not typer.confirm(question, err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(1)


def fail(error: Exception, *, code: int) -> NoReturn:
    """Prints the error's message, without a traceback, and exits."""
    Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def refuse(message: str) -> NoReturn:
    """Says what is wrong with the arguments, and exits with 2."""
    fail(MailroomError(message), code=2)
