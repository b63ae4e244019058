"""`topology`: what the service needs on its broker, what is missing there, and what nobody wants any more."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import typer

from mailroom.cli.broker import OnBroker
from mailroom.cli.interrupt import interruptible
from mailroom.cli.long_work import LongWork
from mailroom.cli.options import Json, Yes, examples
from mailroom.cli.output import as_json, bindings, confirm, fail, refuse, say, table
from mailroom.errors import NotAllowedError, TransportUnavailableError
from mailroom.host import Mailroom
from mailroom.messaging.transports.base import Broker, Part, PartState, Survey


def create(name: str, mailroom: Callable[[], Mailroom]) -> typer.Typer:
    """The commands for the broker of the composed service, whose command line is called `name`."""
    app = typer.Typer(help="See what the service needs on its broker, make it, or clear it up.", no_args_is_help=True)
    on_broker = OnBroker(mailroom, otherwise="nothing has to be made anywhere")

    @app.command(epilog=examples(name, "topology show", "topology show --json"))
    def show(json: Json = False) -> None:
        """Show what is wanted on the broker, with its arguments, and whether it is there.

        Where the broker is away it still shows what is wanted, and exits with 1.
        """

        async def work(broker: Broker) -> tuple[Survey, TransportUnavailableError | None]:
            try:
                return await broker.provisioning.survey(), None
            except TransportUnavailableError as error:
                return Survey(parts=broker.provisioning.wanted()), error

        survey, unavailable = on_broker(work)
        if json:
            as_json({"parts": _shown(survey.parts), "notes": survey.notes})
        else:
            table(
                ["what", "name", "arguments", "state"],
                [(part.kind, part.name, _arguments(part), part.state) for part in survey.parts],
            )
            say(*(part.problem for part in survey.parts if part.problem), *survey.notes)
            if survey.those(PartState.MISSING):
                say(f"to make what is missing, run: {name} topology apply")
            if survey.those(PartState.UNWANTED):
                say(f"to remove what no handler wants, run: {name} topology prune")
        if unavailable is not None:
            fail(unavailable, code=1)

    @app.command(epilog=examples(name, "topology apply"))
    def apply(json: Json = False) -> None:
        """Make what is missing on the broker, whatever `declare_topology` says. Changes and removes nothing.

        Where this user may not do that, it prints what `topology export` prints, for whoever may, and exits with 1.
        """

        async def work(broker: Broker) -> Survey | NotAllowedError:
            try:
                return await broker.provisioning.apply()
            except NotAllowedError as error:
                typer.echo(broker.provisioning.export(), nl=False)
                return error

        before = on_broker(work)
        if isinstance(before, NotAllowedError):
            fail(before, code=1)
        made, ensured = before.those(PartState.MISSING), before.those(PartState.UNKNOWN)
        if json:
            as_json({"made": _shown(made), "ensured": _shown(ensured)})
            return
        if made:
            say(f"made: {_named(made)}")
        if ensured:
            say(f"there now, whether or not it was before: {_named(ensured)}")
        if not made and not ensured:
            say("nothing was missing")

    @app.command(epilog=examples(name, "topology export", "topology export > topology.json"))
    def export() -> None:
        """Print what is wanted as a file for others: definitions for RabbitMQ, a configuration for Azure's emulator.

        It asks no broker.
        """

        async def work(broker: Broker) -> str:
            return broker.provisioning.export()

        typer.echo(on_broker(work), nl=False)

    @app.command(epilog=examples(name, "topology prune", "topology prune --yes"))
    def prune(yes: Yes = False, json: Json = False) -> None:
        """Remove the bindings that no handler wants any more. Messages that are in the queue stay there.

        Instances of an older version that still handle such an event get it no more: let them be gone first.
        """
        survey = on_broker(lambda broker: broker.provisioning.survey())
        unwanted = survey.those(PartState.UNWANTED)
        if survey.notes:
            refuse("; ".join(survey.notes))
        if unwanted and not yes:
            table(["what", "name"], [(part.kind, part.name) for part in unwanted], stderr=True)
            confirm(f"Remove {bindings(len(unwanted))}?")
        if unwanted:
            bar = LongWork("removing bindings", total=len(unwanted))
            interruptible(
                bar,
                lambda: on_broker(
                    lambda broker: bar.run(lambda progress: broker.provisioning.prune(unwanted, progress))
                ),
                "removed",
                bindings,
                json=json,
            )
        if json:
            as_json({"removed": _shown(unwanted)})
        else:
            say(f"{bindings(len(unwanted))} removed")

    return app


def _shown(parts: Iterable[Part]) -> list[dict[str, Any]]:
    return [asdict(part) for part in parts]


def _named(parts: Iterable[Part]) -> str:
    return ", ".join(f"{part.kind} {part.name}" for part in parts)


def _arguments(part: Part) -> str:
    return "\n".join(f"{name} = {value}" for name, value in part.arguments.items())
