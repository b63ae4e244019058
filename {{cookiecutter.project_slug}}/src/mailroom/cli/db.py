"""`db`: migrations of the configured database. Needs no mailroom, so it works where the service would not start."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from sqlalchemy.ext.asyncio import AsyncEngine

from mailroom.cli.options import Json, examples
from mailroom.cli.output import as_json, refuse, say
from mailroom.errors import SchemaError
from mailroom.persistence import schema
from mailroom.persistence.database import create_engine
from mailroom.settings import Settings

T = TypeVar("T")


def create(name: str, settings: Callable[[], Settings]) -> typer.Typer:
    """The commands for a project whose command line is called `name`."""
    app = typer.Typer(help="Migrate the database, and see where it stands.", no_args_is_help=True)

    def with_engine(work: Callable[[AsyncEngine], Awaitable[T]]) -> T:
        async def run() -> T:
            engine = create_engine(settings().database)
            try:
                return await work(engine)
            finally:
                await engine.dispose()

        return asyncio.run(run())

    async def ensure_newest(engine: AsyncEngine) -> None:
        """Raises SchemaError, with the command to run: what is new is told from the newest migration on."""
        needed = schema.needed()
        at = set(await schema.current(engine))
        if at != needed.heads and at <= needed.known:
            where = f"at migration {', '.join(sorted(at))}" if at else "not migrated"
            raise SchemaError(
                f"the database is {where}, and models are compared with it at the newest migration, "
                f"{', '.join(sorted(needed.heads))}. Run: {name} db upgrade"
            )

    def show_current() -> None:
        at = with_engine(schema.current)
        say(f"at {', '.join(at)}" if at else "empty: no migration was applied")

    @app.command(epilog=examples(name, "db upgrade", "db upgrade 0002"))
    def upgrade(revision: Annotated[str, typer.Argument(help="Where to go: a revision, or head.")] = "head") -> None:
        """Apply the migrations that are missing."""
        with_engine(lambda engine: schema.upgrade(engine, revision))
        show_current()

    @app.command(
        epilog=examples(name, "db downgrade -1", "db downgrade base"),
        context_settings={"ignore_unknown_options": True},  # -1 is a revision
    )
    def downgrade(revision: Annotated[str, typer.Argument(help="Where to go: a revision, -1, or base.")]) -> None:
        """Take migrations back. This drops what they created, with everything in it."""
        with_engine(lambda engine: schema.downgrade(engine, revision))
        show_current()

    @app.command(epilog=examples(name, 'db revision -m "parcels"', 'db revision -m "fill in carriers" --empty'))
    def revision(
        message: Annotated[str, typer.Option("--message", "-m", help="What the migration does, in a few words.")],
        empty: Annotated[bool, typer.Option("--empty", help="Do not compare; write an empty migration.")] = False,
    ) -> None:
        """Write the next migration, from the difference between the models and the database."""
        if not message.strip():
            refuse('the message is empty, and it names the migration; say what it does, as in -m "add parcels"')

        async def write(engine: AsyncEngine) -> Path:
            if not empty:
                await ensure_newest(engine)
            return await schema.revision(engine, message, autogenerate=not empty)

        written = with_engine(write)
        say(f"wrote {written}; read it before you apply it with: {name} db upgrade")

    @app.command(epilog=examples(name, "db check", "db check --json"))
    def check(json: Json = False) -> None:
        """Exit with 0 if models and database agree, and with 1 and the differences if they do not."""

        async def compare(engine: AsyncEngine) -> list[str]:
            await ensure_newest(engine)
            return await schema.check(engine)

        differences = with_engine(compare)
        if json:
            as_json({"differences": differences})
        elif differences:
            say("models and database differ:", *(f"- {difference}" for difference in differences))
        else:
            say("models and database agree")
        if differences:
            raise typer.Exit(1)

    @app.command(epilog=examples(name, "db current", "db current --json"))
    def current(json: Json = False) -> None:
        """Show at which migration the database is, and which one the code has."""
        at, newest = with_engine(schema.current), schema.heads()
        if json:
            as_json({"current": list(at), "heads": list(newest)})
            return
        say(f"database: {', '.join(at) or 'not migrated'}; newest migration: {', '.join(newest)}")

    return app
