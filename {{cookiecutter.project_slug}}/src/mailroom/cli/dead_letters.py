"""`dead-letters`: the messages that this service gave up, as they lie on its broker."""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from mailroom.cli.broker import OnBroker
from mailroom.cli.interrupt import interruptible
from mailroom.cli.long_work import LongWork
from mailroom.cli.options import Json, Payload, Yes, examples
from mailroom.cli.output import as_json, confirm, messages, refuse, say, table
from mailroom.errors import MailroomError
from mailroom.host import Mailroom
from mailroom.messaging.transports.base import Broker, DeadLetter, DeadLetters, Progress, Removed

Change = Callable[[DeadLetters, list[str], int | None, Progress], Awaitable[Removed]]

PREVIEWED = 1_000
"""So many are looked at before a question about all of them."""

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Message ids; see `dead-letters list`.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="With --all: only so many.")]


def create(name: str, mailroom: Callable[[], Mailroom]) -> typer.Typer:
    """The commands for the broker of the composed service, whose command line is called `name`."""
    app = typer.Typer(help="See what was given up on the broker, try it again, or delete it.", no_args_is_help=True)
    on_broker = OnBroker(
        mailroom, otherwise=f"what was given up is in the outbox: {name} outbox list --state dead-lettered"
    )

    @app.command("list", epilog=examples(name, "dead-letters list", "dead-letters list --limit 1000 --json"))
    def list_(
        limit: Annotated[int, typer.Option(min=1, help="How many messages to show.")] = 50,
        payload: Payload = False,
        json: Json = False,
    ) -> None:
        """List messages; payloads and stacks only where they are asked for.

        While they are read, other commands do not see them.
        """

        async def work(broker: Broker) -> tuple[list[DeadLetter], int]:
            total = await broker.dead_letters.count()
            return await broker.dead_letters.entries(limit=limit, with_payload=payload), total

        entries, total = on_broker(work)
        if json:
            as_json([_shown(one, payload=payload, stack=payload) for one in entries])
            return
        columns = ["id", "event", "attempts", "redeliveries", "first seen", "bytes", "reason"]
        table(
            [*columns, "payload"] if payload else columns,
            [
                (
                    one.message_id,
                    one.event_type,
                    one.attempts,
                    one.redeliveries,
                    _time(one.first_seen),
                    one.size,
                    one.reason,
                    *([one.payload] if payload else []),
                )
                for one in entries
            ],
        )
        if total > len(entries):
            say(f"{len(entries)} of {total}; more with --limit")

    @app.command(
        epilog=examples(
            name,
            "dead-letters show 6f1c2b0e-6d6a-4c3e-9a51-0d9a3a1f7c55",
            "dead-letters show 6f1c2b0e-6d6a-4c3e-9a51-0d9a3a1f7c55 --payload --json",
        )
    )
    def show(
        message_id: Annotated[str, typer.Argument(metavar="ID", help="Which message; see `dead-letters list`.")],
        payload: Payload = False,
        json: Json = False,
    ) -> None:
        """Show one message with all it has, the stack of its last failure too; the payload only where asked for."""
        found = on_broker(lambda broker: broker.dead_letters.entries(ids=[message_id], limit=1, with_payload=True))
        if not found:
            raise MailroomError(
                f"there is no message {message_id} among the dead letters; `{name} dead-letters list` shows what there "
                "is"
            )
        shown = _shown(found[0], payload=payload, stack=True)
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

    @app.command(
        epilog=examples(
            name,
            "dead-letters replay 6f1c2b0e-6d6a-4c3e-9a51-0d9a3a1f7c55",
            "dead-letters replay --all --limit 10",
            "dead-letters replay --all --yes",
        )
    )
    def replay(
        ids: Ids = None, everything: All = False, limit: Limit = None, yes: Yes = False, json: Json = False
    ) -> None:
        """Give messages to the service once more, with all attempts before them: by id, or all.

        Where the inbox knows a message, its handlers do not run again.
        """
        _change(on_broker, "replay", "replayed", _replay, _chosen(ids, everything, limit), limit, yes=yes, json=json)

    @app.command(
        epilog=examples(
            name,
            "dead-letters discard 6f1c2b0e-6d6a-4c3e-9a51-0d9a3a1f7c55",
            "dead-letters discard --all --yes",
        )
    )
    def discard(
        ids: Ids = None, everything: All = False, limit: Limit = None, yes: Yes = False, json: Json = False
    ) -> None:
        """Delete messages for good: by id, or all."""
        _change(on_broker, "discard", "discarded", _discard, _chosen(ids, everything, limit), limit, yes=yes, json=json)

    return app


async def _replay(letters: DeadLetters, ids: list[str], limit: int | None, progress: Progress) -> Removed:
    return await letters.replay(ids, limit=limit, progress=progress)


async def _discard(letters: DeadLetters, ids: list[str], limit: int | None, progress: Progress) -> Removed:
    return await letters.discard(ids, limit=limit, progress=progress)


def _chosen(ids: list[str] | None, everything: bool, limit: int | None) -> list[str]:
    """No ids are all of them."""
    if bool(ids) == everything:
        refuse("say which messages: ids, or --all; one of these")
    if ids and limit is not None:
        refuse("--limit is for --all; ids say themselves which messages")
    return ids or []


def _change(
    on_broker: OnBroker,
    verb: str,
    done: str,
    change: Change,
    ids: list[str],
    limit: int | None,
    *,
    yes: bool,
    json: bool,
) -> None:
    """Shows which messages it would be, asks, moves them, and says what became of them; exits with 1 if not all."""

    async def look(broker: Broker) -> tuple[int, list[DeadLetter]]:
        """How many there are about, and some of them for the question."""
        letters = broker.dead_letters
        count = len(ids) or await letters.count()
        total = count if limit is None else min(count, limit)
        if yes:
            return total, []
        found = await letters.entries(ids=ids, limit=limit if ids or limit else PREVIEWED)
        return max(len(found), 0 if ids else total), found

    total, found = on_broker(look)
    if found:
        groups = Counter((one.event_type, one.exception) for one in found)
        table(
            ["event", "exception", "messages"],
            [(event, exception, count) for (event, exception), count in groups.items()],
            stderr=True,
        )
        more = f", {len(found)} of which are these" if total > len(found) else ""
        confirm(f"{verb.capitalize()} {messages(total)}{more}?")
        if limit is not None:  # the broker may hand out others next time
            ids, limit = list({one.message_id: None for one in found}), None
    result = Removed(messages=0, missing=tuple(sorted(set(ids))))
    if yes or found:
        bar = LongWork(f"{verb} messages", total=total)
        result = interruptible(
            bar,
            lambda: on_broker(
                lambda broker: bar.run(lambda progress: change(broker.dead_letters, ids, limit, progress))
            ),
            done,
            messages,
            json=json,
        )
    if json:
        as_json({done: result.messages, "missing": result.missing})
    else:
        say(f"{messages(result.messages)} {done}")
        if result.missing:
            say(f"not there: {', '.join(result.missing)}")
    if result.missing:
        raise typer.Exit(1)


def _shown(one: DeadLetter, *, payload: bool, stack: bool) -> dict[str, Any]:
    hidden = {name for name, is_shown in (("payload", payload), ("stack", stack)) if not is_shown}
    return {name: value for name, value in asdict(one).items() if name not in hidden}


def _time(time: datetime | None) -> str | None:
    return None if time is None else f"{time:%Y-%m-%dT%H:%M:%SZ}"
