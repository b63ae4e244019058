"""`db`: migrations of every data source. Needs no mailroom, so it works where the service would not start."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from sqlalchemy.ext.asyncio import AsyncEngine

from mailroom.cli.options import DataSource, EverySource, Json, examples
from mailroom.cli.output import as_json, refuse, say
from mailroom.errors import ConfigurationError, SchemaError
from mailroom.persistence import schema
from mailroom.persistence.database import create_engine
from mailroom.settings import DatabaseSettings, Settings
from mailroom.settings_sections import DEFAULT_SOURCE

T = TypeVar("T")


def create(name: str, settings: Callable[[], Settings]) -> typer.Typer:
    """The commands for a project whose command line is called `name`."""
    app = typer.Typer(help="Migrate the databases, and see where they stand.", no_args_is_help=True)

    def named(source: str | None) -> dict[str, DatabaseSettings]:
        """The data source of that name, or every one."""
        known = settings().sources
        if source is not None and source not in known:
            raise ConfigurationError(f"there is no data source {source}; there are: {', '.join(known)}")
        return {one: database for one, database in known.items() if source in (None, one)}

    def in_each(source: str | None, work: Callable[[AsyncEngine, str], Awaitable[T]]) -> dict[str, T]:
        """What `work` returned for the data source, or for every one; by name."""
        chosen = named(source)

        async def run(one: str) -> T:
            engine = create_engine(chosen[one])
            try:
                return await work(engine, one)
            finally:
                await engine.dispose()

        return {one: asyncio.run(run(one)) for one in chosen}

    async def ensure_newest(engine: AsyncEngine, source: str) -> None:
        """Raises SchemaError, with the command to run: what is new is told from the newest migration on."""
        needed = schema.needed(source=source)
        if needed.problems:
            raise SchemaError("; ".join(needed.problems), remedy=f"run: {name} db revision --framework")
        at = set(await schema.current(engine))
        if at != needed.heads and at <= needed.known:
            where = f"at migration {', '.join(sorted(at))}" if at else "not migrated"
            raise SchemaError(
                f"the database is {where}, and models are compared with it at the newest migration, "
                f"{', '.join(sorted(needed.heads))}",
                remedy=f"run: {name} db upgrade",
            )

    def show_current(source: str | None) -> None:
        for one, at in in_each(source, lambda engine, _: schema.current(engine)).items():
            say(_of(one, f"at {', '.join(at)}" if at else "empty: no migration was applied"))

    @app.command(epilog=examples(name, "db upgrade", "db upgrade 0002 --data-source default"))
    def upgrade(
        revision: Annotated[str, typer.Argument(help="Where to go: a revision, or head.")] = "head",
        data_source: EverySource = None,
    ) -> None:
        """Apply the migrations that are missing: in every data source, or up to a revision in one."""
        chosen = data_source if revision == "head" else data_source or DEFAULT_SOURCE
        in_each(chosen, lambda engine, source: schema.upgrade(engine, revision, source=source))
        show_current(chosen)

    @app.command(
        epilog=examples(name, "db downgrade -1", "db downgrade base"),
        context_settings={"ignore_unknown_options": True},  # -1 is a revision
    )
    def downgrade(
        revision: Annotated[str, typer.Argument(help="Where to go: a revision, -1, or base.")],
        data_source: DataSource = DEFAULT_SOURCE,
    ) -> None:
        """Take migrations back. This drops what they created, with everything in it."""
        in_each(data_source, lambda engine, source: schema.downgrade(engine, revision, source=source))
        show_current(data_source)

    @app.command(epilog=examples(name, "db init billing"))
    def init(data_source: Annotated[str, typer.Argument(metavar="NAME", help="A name of data_sources.")]) -> None:
        """Write the first migration of a further data source: the one that makes both tables."""
        say(f"wrote {schema.init(data_source)}; apply it with: {name} db upgrade")

    @app.command(epilog=examples(name, 'db revision -m "parcels"', "db revision --framework"))
    def revision(
        message: Annotated[str, typer.Option("--message", "-m", help="What the migration does, in a few words.")] = "",
        empty: Annotated[bool, typer.Option("--empty", help="Do not compare; write an empty migration.")] = False,
        framework: Annotated[
            bool, typer.Option("--framework", help="Write what a new version of mailroom needs; asks no database.")
        ] = False,
        data_source: Annotated[
            str | None,
            typer.Option("--data-source", metavar="NAME", help="Unset: `default`, and every one with --framework."),
        ] = None,
    ) -> None:
        """Write the next migration, from the difference between the models and the database."""
        if framework:
            if message or empty:
                refuse("--framework knows what to write, and what to call it; leave out --message and --empty")
            write_steps(data_source)
            return
        if not message.strip():
            refuse('the message is empty, and it names the migration; say what it does, as in -m "add parcels"')

        async def write(engine: AsyncEngine, source: str) -> Path:
            if not empty:
                await ensure_newest(engine, source)
            return await schema.revision(engine, message, autogenerate=not empty, source=source)

        ((_, written),) = in_each(data_source or DEFAULT_SOURCE, write).items()
        say_written(written)

    def write_steps(data_source: str | None) -> None:
        written = [path for source in named(data_source) for path in schema.take_steps(source=source)]
        say_written(*written)
        if not written:
            say("nothing to write: the migrations make the tables that this mailroom needs")

    def say_written(*paths: Path) -> None:
        say(*(f"wrote {path}; read it before you apply it with: {name} db upgrade" for path in paths))

    @app.command(epilog=examples(name, "db check", "db check --json"))
    def check(data_source: EverySource = None, json: Json = False) -> None:
        """Exit with 0 if models and databases agree, and with 1 and the differences if they do not."""

        async def compare(engine: AsyncEngine, source: str) -> list[str]:
            await ensure_newest(engine, source)
            return await schema.check(engine, source=source)

        found = in_each(data_source, compare)
        differences = [_of(source, line) for source, lines in found.items() for line in lines]
        if json:
            as_json({"differences": differences})
        elif differences:
            say("models and database differ:", *(f"- {difference}" for difference in differences))
        else:
            say("models and database agree")
        if differences:
            raise typer.Exit(1)

    @app.command(epilog=examples(name, "db current", "db current --json --data-source billing"))
    def current(data_source: DataSource = DEFAULT_SOURCE, json: Json = False) -> None:
        """Show at which migration a database is, and which one the code has."""
        at = in_each(data_source, lambda engine, _: schema.current(engine))[data_source]
        newest = schema.heads(source=data_source)
        if json:
            as_json({"current": list(at), "heads": list(newest)})
            return
        say(_of(data_source, f"database: {', '.join(at) or 'not migrated'}; newest migration: {', '.join(newest)}"))

    return app


def _of(source: str, what: str) -> str:
    """The default one needs no name: most services have no other."""
    return what if source == DEFAULT_SOURCE else f"{source}: {what}"
