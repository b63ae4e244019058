"""The command line that any project mounts: `create_cli` (contract A1).

Exit codes: 0 done, 1 it could not be done, 2 the settings or the arguments are wrong.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from mailroom import posture as postures
from mailroom.cli import db, dead_letters, doctor, events, outbox, topology
from mailroom.cli.options import Json, examples
from mailroom.cli.output import as_json, fail, say
from mailroom.errors import ConfigurationError, MailroomError
from mailroom.host import Mailroom
from mailroom.log import configure_logging
from mailroom.settings import Settings


class _Group(TyperGroup):
    """Prints what mailroom raises on purpose as a message instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigurationError as error:
            fail(error, code=2)
        except MailroomError as error:
            fail(error, code=1)


def create_cli(name: str, *, settings: Callable[[], Settings], mailroom: Callable[[], Mailroom]) -> typer.Typer:
    """A typer application; add commands of your own to it with `@app.command()`.

    `settings` reads the settings in force, `mailroom` composes the service. Commands that explain or repair
    (`posture`, `doctor`, `db`) need only the settings, so they work where the service would refuse to start (P4).
    """
    app = typer.Typer(
        name=name,
        cls=_Group,
        help=f"Run {name}, look at it, and repair it.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.command(epilog=examples(name, "run"))
    def run() -> None:
        """Run the relay, the cleanup and the consumers that the posture asks for, until SIGTERM or Ctrl-C."""
        service = mailroom()
        configure_logging(service.settings.logging)
        asyncio.run(service.run())

    @app.command(epilog=examples(name, "posture", "posture --json"))
    def posture(json: Json = False) -> None:
        """Show what will run with the settings in force, why, and what it costs."""
        resolved = postures.resolve(settings())
        if json:
            as_json(postures.as_json(resolved))
            return
        say(*postures.explain(resolved))
        try:
            mailroom()
        except ConfigurationError as error:
            if not resolved.is_refused:
                say(f"refuses to start: {error}")

    @app.command("doctor", epilog=examples(name, "doctor", "doctor --json"))
    def doctor_(json: Json = False) -> None:
        """Look at settings, database, tables, backlog, clocks and broker: each is fine, or what to do is said.

        Exits with 0 if all is well, 1 if there is something to do, 2 if the settings cannot work.
        """
        doctor.show(name, settings, mailroom, json=json)

    @app.command("events", epilog=examples(name, "events", "events --json"))
    def events_(json: Json = False) -> None:
        """Show the events that this service knows: names, versions, aliases, kinds, and what handles them."""
        events.show(mailroom(), json=json)

    app.add_typer(db.create(name, settings), name="db")
    app.add_typer(outbox.create(name, mailroom), name="outbox")
    app.add_typer(dead_letters.create(name, mailroom), name="dead-letters")
    app.add_typer(topology.create(name, mailroom), name="topology")
    return app
