"""How commands talk: tables for people, JSON for machines, errors on standard error."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Column, Table

console = Console()
_errors = Console(stderr=True)


def as_json(value: Any) -> None:
    """Prints a value as one JSON document."""
    typer.echo(json.dumps(value, indent=2, default=str))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints rows under headings. Only the last column wraps; names and times stay on one line."""
    *narrow, last = columns
    shown = Table(*(Column(name, no_wrap=True) for name in narrow), Column(last, overflow="fold"), header_style="bold")
    for row in rows:
        shown.add_row(*("" if cell is None else str(cell) for cell in row))
    console.print(shown)


def fail(error: Exception, *, code: int) -> NoReturn:
    """Prints the error's message, without a traceback, and exits."""
    _errors.print(f"error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)
