"""`outbox`: what waits, what failed, and sending it again."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from mailroom.cli.options import Json
from mailroom.cli.output import as_json, say, table
from mailroom.host import Mailroom
from mailroom.outbox.administration import Replayed, State, Stats

T = TypeVar("T")


def create(mailroom: Callable[[], Mailroom]) -> typer.Typer:
    """The commands for the outbox of the composed service."""
    app = typer.Typer(help="See what the outbox holds, and send it again.", no_args_is_help=True)

    def with_mailroom(work: Callable[[Mailroom], Awaitable[T]]) -> T:
        async def run() -> T:
            service = mailroom()
            try:
                await service.ensure_migrated()
                return await work(service)
            finally:
                await service.close()

        return asyncio.run(run())

    @app.command()
    def stats(json: Json = False) -> None:
        """Count the rows of both tables by what became of them."""
        counted: Stats = with_mailroom(lambda service: service.outbox.stats())
        if json:
            as_json(asdict(counted))
        else:
            table(["rows", "count"], [(name.replace("_", " "), value) for name, value in asdict(counted).items()])

    @app.command("list")
    def list_(
        state: Annotated[State | None, typer.Option(help="Only rows in this state.")] = None,
        limit: Annotated[int, typer.Option(min=1, help="How many rows to show.")] = 50,
        before: Annotated[int | None, typer.Option(help="Only rows with a smaller id: the next page.")] = None,
        json: Json = False,
    ) -> None:
        """List rows without their payloads, the newest first."""
        entries = with_mailroom(lambda service: service.outbox.entries(state=state, limit=limit, before_id=before))
        if json:
            as_json([asdict(entry) for entry in entries])
            return
        table(
            ["id", "event", "state", "attempts", "occurred on", "last error"],
            [
                (
                    one.id,
                    one.event_type,
                    one.state,
                    one.attempts,
                    f"{one.occurred_on:%Y-%m-%dT%H:%M:%SZ}",
                    one.last_error,
                )
                for one in entries
            ],
        )

    @app.command()
    def replay(
        ids: Annotated[list[int] | None, typer.Argument(help="Which rows; see `outbox list`.")] = None,
        dead_letters: Annotated[bool, typer.Option("--dead-letters", help="All dead letters.")] = False,
        json: Json = False,
    ) -> None:
        """Make rows due again, with all their attempts before them. Rows that a relay holds are left alone."""
        if bool(ids) == dead_letters:
            raise typer.BadParameter("give the ids of rows, or --dead-letters")

        async def work(service: Mailroom) -> Replayed:
            return await service.outbox.replay(ids or await service.outbox.dead_letter_ids())

        result = with_mailroom(work)
        if json:
            as_json(asdict(result))
        else:
            say(f"{len(result.replayed)} rows are due again")
            if result.leased:
                say(f"left alone, since a relay holds them: {', '.join(map(str, result.leased))}")
            if result.missing:
                say(f"not there: {', '.join(map(str, result.missing))}")
        if result.leased or result.missing:
            raise typer.Exit(1)

    @app.command()
    def drain(json: Json = False) -> None:
        """Send what is due until nothing is, also while the outbox is off. What fails waits for its next try."""

        async def work(service: Mailroom) -> tuple[int, Stats]:
            with Console().status("sending") as status:
                sent = await service.drain(lambda count: status.update(f"{count} rows handed out"))
            return sent, await service.outbox.stats()

        sent, left = with_mailroom(work)
        if json:
            as_json({"handed_out": sent, "pending": left.pending, "dead_lettered": left.dead_lettered})
        else:
            say(f"{sent} rows handed out; {left.pending} pending, {left.dead_lettered} dead-lettered")
        if left.pending:
            raise typer.Exit(1)

    return app
