"""`events`: what this service knows, and which functions handle it."""

from typing import Any

from mailroom.cli.output import as_json, say, table
from mailroom.host import Mailroom


def known(mailroom: Mailroom) -> list[dict[str, Any]]:
    """Every event of the catalog by name, with its handlers in the order in which they run."""
    events = [
        {
            "name": event.event_name,
            "version": event.event_version,
            "kind": event.kind.value,
            "aliases": list(event.event_aliases),
            "handlers": [handler.name for handler in mailroom.handlers.of(event)],
        }
        for event in mailroom.catalog
    ]
    return sorted(events, key=lambda event: event["name"])


def show(mailroom: Mailroom, *, json: bool) -> None:
    """Prints them. An event without handlers is known, so it is acknowledged and recorded (contract I5)."""
    events = known(mailroom)
    if json:
        as_json(events)
    elif not events:
        say("no event is known here; give Mailroom the handlers of a module, or events=[...]")
    else:
        table(
            ["event", "version", "kind", "aliases", "handlers"],
            [
                (
                    event["name"],
                    event["version"],
                    event["kind"],
                    "\n".join(event["aliases"]),
                    "\n".join(event["handlers"]) or "none",
                )
                for event in events
            ],
        )
