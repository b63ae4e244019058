"""`outbox replay`, `discard` and `purge`: shown first, then confirmed, then done in batches (contract A1, F17)."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, TypeVar

import typer

from mailroom.cli.composed import Composed
from mailroom.cli.interrupt import interruptible
from mailroom.cli.long_work import LongWork
from mailroom.cli.options import DataSource, EventType, Json, OlderThan, OrderingKey, Yes, examples
from mailroom.cli.output import as_json, confirm, refuse, rows, say, table
from mailroom.host import Mailroom
from mailroom.outbox.administration import Changed, OutboxAdministration, Progress
from mailroom.outbox.inspection import Group
from mailroom.outbox.selection import Selection, State
from mailroom.settings_sections import DEFAULT_SOURCE

T = TypeVar("T")
Change = Callable[[OutboxAdministration, Selection, Progress], Awaitable[Changed]]

Ids = Annotated[list[int] | None, typer.Argument(metavar="ID", help="Which rows; see `outbox list`.")]
All = Annotated[bool, typer.Option("--all", help="All dead letters.")]
InState = Annotated[State | None, typer.Option("--state", help="Only rows in this state; unset: dead letters.")]


def add(app: typer.Typer, name: str, with_mailroom: Composed) -> None:
    """Adds the commands to those of the outbox."""

    @app.command(
        epilog=examples(
            name,
            "outbox replay 7 8",
            f"outbox replay --event-type {name}.order-placed --older-than 2h",
            "outbox replay --all --yes",
            "outbox replay --state processed --ordering-key anna",
        )
    )
    def replay(
        ids: Ids = None,
        everything: All = False,
        state: InState = None,
        event_type: EventType = None,
        ordering_key: OrderingKey = None,
        older_than: OlderThan = None,
        data_source: DataSource = DEFAULT_SOURCE,
        yes: Yes = False,
        json: Json = False,
    ) -> None:
        """Make rows due again, with all their attempts before them: by id, by filter, or all dead letters.

        Rows that a relay holds are left alone. Where the inbox knows a message, its handlers do not run again.
        """
        chosen = _selection(ids, everything, state, event_type, ordering_key, older_than)
        _change(
            with_mailroom, "replay", "replayed", OutboxAdministration.replay, chosen, data_source, yes=yes, json=json
        )

    @app.command(
        epilog=examples(
            name,
            "outbox discard 7 8",
            f"outbox discard --event-type {name}.order-placed",
            "outbox discard --state pending --older-than 7d",
            "outbox discard --all --yes",
        )
    )
    def discard(
        ids: Ids = None,
        everything: All = False,
        state: InState = None,
        event_type: EventType = None,
        ordering_key: OrderingKey = None,
        older_than: OlderThan = None,
        data_source: DataSource = DEFAULT_SOURCE,
        yes: Yes = False,
        json: Json = False,
    ) -> None:
        """Delete rows for good: by id, by filter, or all dead letters. What was not sent is never sent.

        Rows that a relay holds are left alone.
        """
        chosen = _selection(ids, everything, state, event_type, ordering_key, older_than)
        _change(
            with_mailroom, "discard", "discarded", OutboxAdministration.discard, chosen, data_source, yes=yes, json=json
        )

    @app.command(
        epilog=examples(name, "outbox purge", "outbox purge --older-than-days 30 --yes", "outbox purge --dead-letters")
    )
    def purge(
        older_than_days: Annotated[
            float | None,
            typer.Option(min=0, max=100_000, help="Since when they are done; unset: outbox.retention_days."),
        ] = None,
        dead_letters: Annotated[bool, typer.Option("--dead-letters", help="Dead letters of that age too.")] = False,
        data_source: DataSource = DEFAULT_SOURCE,
        yes: Yes = False,
        json: Json = False,
    ) -> None:
        """Delete rows that were processed long ago, as the cleanup does; dead letters only if asked to."""

        async def look(service: Mailroom) -> tuple[timedelta, int]:
            days = service.settings.outbox.retention_days if older_than_days is None else older_than_days
            if older_than_days is None and not days:
                refuse("outbox.retention_days is 0, which keeps rows for ever; give --older-than-days")
            age = timedelta(days=days)
            return age, await service.data_source(data_source).outbox.purgeable(age, dead_letters=dead_letters)

        age, total = with_mailroom(look, data_source)
        if total and not yes:
            what = "processed or dead-lettered" if dead_letters else "processed"
            confirm(f"Delete {rows(total)}, {what} more than {age / timedelta(days=1):g} days ago?")

        async def work(outbox: OutboxAdministration, progress: Progress) -> int:
            return await outbox.purge(age, dead_letters=dead_letters, progress=progress)

        purged = _do(with_mailroom, "purging", "purged", work, data_source, total=total, json=json) if total else 0
        if json:
            as_json({"purged": purged})
        else:
            say(f"{rows(purged)} purged")


def _selection(
    ids: list[int] | None,
    everything: bool,
    state: State | None,
    event_type: str | None,
    ordering_key: str | None,
    older_than: timedelta | None,
) -> Selection:
    has_filter = any(one is not None for one in (state, event_type, ordering_key, older_than))
    if (bool(ids), everything, has_filter).count(True) != 1:
        refuse("say which rows: ids, or filters such as --state dead-lettered, or --all; one of these")
    if state is State.LEASED:
        refuse("rows that a relay holds are left alone; they can be listed")
    if ids:
        return Selection(ids=ids)
    return Selection(
        state=state or State.DEAD_LETTERED, event_type=event_type, ordering_key=ordering_key, older_than=older_than
    )


def _change(
    with_mailroom: Composed,
    verb: str,
    done: str,
    change: Change,
    chosen: Selection,
    data_source: str,
    *,
    yes: bool,
    json: bool,
) -> None:
    """Shows which rows it would be, asks, changes them, and says what became of them; exits with 1 if not all."""

    async def look(service: Mailroom) -> tuple[list[Group], Changed]:
        outbox = service.data_source(data_source).outbox
        groups = [group for group in await outbox.groups(chosen) if group.state is not State.LEASED]
        return groups, Changed(rows=0, held=await outbox.held(chosen), missing=await outbox.missing(chosen))

    groups, result = with_mailroom(look, data_source)
    total = sum(group.rows for group in groups)
    if total and not yes:
        table(["event", "state", "rows"], [(one.event_type, one.state, one.rows) for one in groups], stderr=True)
        confirm(f"{verb.capitalize()} {rows(total)}?")

    async def work(outbox: OutboxAdministration, progress: Progress) -> Changed:
        return await change(outbox, chosen, progress)

    if total:
        result = _do(with_mailroom, f"{verb} rows", done, work, data_source, total=total, json=json)
    if json:
        as_json({done: result.rows, "held": result.held, "missing": result.missing})
    else:
        say(f"{rows(result.rows)} {done}")
        if result.held:
            say(f"left alone, since a relay holds them: {', '.join(map(str, result.held))}")
        if result.missing:
            say(f"not there: {', '.join(map(str, result.missing))}")
    if result.held or result.missing:
        raise typer.Exit(1)


def _do(
    with_mailroom: Composed,
    what: str,
    done: str,
    work: Callable[[OutboxAdministration, Progress], Awaitable[T]],
    data_source: str,
    *,
    total: int,
    json: bool,
) -> T:
    bar = LongWork(what, total=total)
    return interruptible(
        bar,
        lambda: with_mailroom(
            lambda service: bar.run(lambda progress: work(service.data_source(data_source).outbox, progress)),
            data_source,
        ),
        done,
        rows,
        json=json,
    )
