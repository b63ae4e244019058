"""How commands talk: tables for people, JSON for machines, errors on standard error."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text


def say(*lines: str) -> None:
    """Prints text for people, wrapped at the width of their terminal."""
    for line in lines:
        Console().print(line, markup=False, highlight=False)


def as_json(value: Any) -> None:
    """Prints a value as one JSON document."""
    typer.echo(json.dumps(value, indent=2, default=str))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows under headings. What does not fit is folded, never cut."""
    shown = Table(*(Column(name, overflow="fold") for name in columns), header_style="bold")
    for row in rows:
        shown.add_row(*("" if cell is None else Text(str(cell)) for cell in row))  # what is stored is no markup
    Console().print(shown)


def fail(error: Exception, *, code: int) -> NoReturn:
    """Prints the error's message, without a traceback, and exits."""
    Console(stderr=True).print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)
