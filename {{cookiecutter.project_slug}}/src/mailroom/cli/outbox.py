"""`outbox`: what waits, what failed, and sending it again."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console

from mailroom.cli import outbox_changes
from mailroom.cli.composed import Composed
from mailroom.cli.options import (
    DataSource,
    EventType,
    EverySource,
    InState,
    Json,
    OlderThan,
    OrderingKey,
    Payload,
    examples,
)
from mailroom.cli.output import as_json, rows, say, table
from mailroom.errors import MailroomError
from mailroom.host import Mailroom
from mailroom.outbox.inspection import Details, Stats
from mailroom.outbox.selection import Selection
from mailroom.settings_sections import DEFAULT_SOURCE


def create(name: str, mailroom: Callable[[], Mailroom]) -> typer.Typer:
    """The commands for the outbox of the composed service, whose command line is called `name`."""
    app = typer.Typer(help="See what the outbox holds, send it again, or clear it away.", no_args_is_help=True)
    with_mailroom = Composed(mailroom)

    @app.command(epilog=examples(name, "outbox stats", "outbox stats --json"))
    def stats(data_source: DataSource = DEFAULT_SOURCE, json: Json = False) -> None:
        """Count the rows of both tables by what became of them."""
        counted: Stats = with_mailroom(lambda service: service.data_source(data_source).outbox.stats(), data_source)
        if json:
            as_json(asdict(counted))
        else:
            table(["rows", "count"], [(name.replace("_", " "), value) for name, value in asdict(counted).items()])

    @app.command(
        "list",
        epilog=examples(
            name,
            "outbox list --state dead-lettered",
            f"outbox list --event-type {name}.order-placed --older-than 2h",
            "outbox list --limit 100 --before 4711",
        ),
    )
    def list_(
        state: InState = None,
        event_type: EventType = None,
        ordering_key: OrderingKey = None,
        older_than: OlderThan = None,
        limit: Annotated[int, typer.Option(min=1, help="How many rows to show.")] = 50,
        before: Annotated[int | None, typer.Option(help="Only rows with a smaller id: the next page.")] = None,
        data_source: DataSource = DEFAULT_SOURCE,
        json: Json = False,
    ) -> None:
        """List rows without their payloads, the newest first."""
        chosen = Selection(state=state, event_type=event_type, ordering_key=ordering_key, older_than=older_than)
        entries = with_mailroom(
            lambda service: service.data_source(data_source).outbox.entries(chosen, limit=limit, before_id=before),
            data_source,
        )
        if json:
            as_json([asdict(entry) for entry in entries])
            return
        table(
            ["id", "event", "state", "attempts", "occurred on", "ordering key", "last error"],
            [
                (
                    one.id,
                    one.event_type,
                    one.state,
                    one.attempts,
                    _time(one.occurred_on),
                    one.ordering_key,
                    one.last_error,
                )
                for one in entries
            ],
        )
        if len(entries) == limit:
            say(f"the next page: --before {entries[-1].id}")

    @app.command(epilog=examples(name, "outbox show 7", "outbox show 7 --payload --json"))
    def show(
        row_id: Annotated[int, typer.Argument(metavar="ID", help="Which row; see `outbox list`.")],
        payload: Payload = False,
        data_source: DataSource = DEFAULT_SOURCE,
        json: Json = False,
    ) -> None:
        """Show one row with all it has; the payload only where it is asked for."""

        async def work(service: Mailroom) -> Details | None:
            return await service.data_source(data_source).outbox.entry(row_id, with_payload=payload)

        found = with_mailroom(work, data_source)
        if found is None:
            raise MailroomError(f"there is no row {row_id} in the outbox; `{name} outbox list` shows what there is")
        shown = asdict(found)
        if not payload:
            del shown["payload"]
        if json:
            as_json(shown)
            return
        table(
            ["what", "value"],
            [
                (what.replace("_", " "), _time(value) if isinstance(value, datetime) else value)
                for what, value in shown.items()
            ],
        )

    @app.command(epilog=examples(name, "outbox drain", "outbox drain --data-source billing"))
    def drain(data_source: EverySource = None, json: Json = False) -> None:
        """Send what is due, in every data source, until nothing is; also while the outbox is off.

        What fails waits for its next try.
        """

        async def work(service: Mailroom) -> tuple[int, int, int]:
            with Console(stderr=True).status("sending") as status:
                sent = await service.drain(
                    lambda count: status.update(f"{rows(count)} handed out"), data_source=data_source
                )
            drained = service.data_sources.values() if data_source is None else [service.data_source(data_source)]
            left = [await source.outbox.stats() for source in drained]
            return sent, sum(one.pending for one in left), sum(one.dead_lettered for one in left)

        sent, pending, dead_lettered = with_mailroom(work, data_source)
        if json:
            as_json({"handed_out": sent, "pending": pending, "dead_lettered": dead_lettered})
        else:
            say(f"{rows(sent)} handed out; {pending} pending, {dead_lettered} dead-lettered")
        if pending:
            raise typer.Exit(1)

    outbox_changes.add(app, name, with_mailroom)
    return app


def _time(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"
