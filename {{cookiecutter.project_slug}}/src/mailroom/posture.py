"""Which of outbox and inbox run, why, and what that costs: the rule, written once (ADR-021, ADR-100, contract P1-P6).

posture = explicit setting, if there is one, else: is there a broker?
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mailroom.errors import ConfigurationError
from mailroom.settings import Settings
from mailroom.settings_sections import DEFAULT_SOURCE

IN_PROCESS = "in_process"
TRANSPORT = "transport"
PER_SOURCE = ("OutboxProcessor", "OutboxCleanup")
"""Of these services every data source has its own (contract T5)."""
OUTBOX = "message_bus.enable_outbox"
INBOX = "message_bus.enable_inbox"


@dataclass(frozen=True)
class Resolved:
    """Whether it is on, and who said so: "transport", or where the setting was given."""

    enabled: bool
    source: str


@dataclass(frozen=True)
class Posture:
    """What the settings in force come to. Every component reads this, never the settings."""

    provider: str
    data_sources: Mapping[str, str]
    """Every data source by its name, with its kind of database."""
    inbox_source: str
    """The one that holds the inbox."""
    outbox: Resolved
    inbox: Resolved
    services: tuple[str, ...]
    """What will run, by name; nothing if the host refuses to start."""

    @property
    def database(self) -> str:
        """The kind of the default data source."""
        return self.data_sources[DEFAULT_SOURCE]

    @property
    def is_broker(self) -> bool:
        return self.provider != IN_PROCESS

    @property
    def is_refused(self) -> bool:
        """A broker without the outbox: nothing would ever publish (P4)."""
        return self.is_broker and not self.outbox.enabled


def resolve(settings: Settings) -> Posture:
    """The posture that the settings come to. Never fails, so that it can be explained even when it is refused."""
    bus = settings.message_bus
    is_broker = bus.provider != IN_PROCESS
    outbox = _rule(bus.enable_outbox, settings.source(OUTBOX), is_broker=is_broker)
    inbox = _rule(bus.enable_inbox, settings.source(INBOX), is_broker=is_broker)
    return Posture(
        provider=bus.provider,
        data_sources={name: database.kind for name, database in settings.sources.items()},
        inbox_source=settings.outbox.data_source,
        outbox=outbox,
        inbox=inbox,
        services=_services(
            is_broker=is_broker,
            outbox=outbox.enabled,
            inbox=inbox.enabled,
            endpoint=settings.health.port is not None,
            sources=tuple(settings.sources),
        ),
    )


def _rule(explicit: bool | None, source: str | None, *, is_broker: bool) -> Resolved:
    if explicit is not None:
        return Resolved(explicit, source or "code")
    return Resolved(is_broker, TRANSPORT)


def _services(
    *, is_broker: bool, outbox: bool, inbox: bool, endpoint: bool, sources: tuple[str, ...]
) -> tuple[str, ...]:
    """By name, as contract P3 says. A broker without the outbox runs nothing: see `refuse`."""
    if is_broker and not outbox:
        return ()
    registered = {
        "HealthEndpoint": endpoint,
        "OutboxProcessor": outbox,
        "OutboxDisabledNotice": not outbox,
        "OutboxCleanup": outbox or inbox,
        "InboxDisabledWarning": is_broker and not inbox,
        "BrokerConsumer": is_broker,
    }
    return tuple(
        named(name, source)
        for name, is_registered in registered.items()
        for source in (sources if name in PER_SOURCE else sources[:1])
        if is_registered
    )


def named(service: str, source: str) -> str:
    """What the service of one data source is called."""
    return service if source == DEFAULT_SOURCE else f"{service} ({source})"


def refuse(posture: Posture) -> None:
    """Raises ConfigurationError for the one combination that cannot work: a broker without the outbox (P4)."""
    if refusal := _refusal(posture):
        raise ConfigurationError(refusal)


def _refusal(posture: Posture) -> str | None:
    if not posture.is_refused:
        return None
    return (
        f"{OUTBOX} = false ({posture.outbox.source}) cannot work with message_bus.provider = {posture.provider}: "
        "events reach a broker only as outbox rows that OutboxProcessor publishes, so nothing would ever be published "
        f"and every event for another service would be lost silently; remove {OUTBOX}, and the outbox is on as for "
        "every broker, or set it to true"
    )


def outbox_disabled_notice(posture: Posture) -> str:
    """What it costs that the outbox is off: one line, logged at every start (P5)."""
    idle = " and ".join(name for name in ("OutboxProcessor", "OutboxCleanup") if name not in posture.services)
    return (
        f"the outbox is off ({_because(OUTBOX, posture.outbox, posture)}): events are dispatched directly after the "
        f"commit, no rows are written, {idle} {'do' if ' and ' in idle else 'does'} not run, an event whose handler "
        "fails is not retried, and a crash between the commit and the dispatch loses the event; "
        f"{OUTBOX} = true brings it back, and no migration is needed"
    )


def inbox_disabled_warning(posture: Posture) -> str:
    """What a deliberate opt-out of the inbox costs with a broker: one line, logged at every start (P5)."""
    return (
        f"the inbox is off, a deliberate opt-out ({_because(INBOX, posture.inbox, posture)}): {posture.provider} may "
        "deliver a message again, and each redelivery will repeat the side effects of its handlers, such as a second "
        f"mail or a second charge; remove {INBOX} to have duplicates recognised and skipped, and no migration is "
        "needed: the table inbox_messages is already there"
    )


def explain(posture: Posture) -> list[str]:
    """What will run and what it costs, in plain sentences, for people (P6)."""
    lines = [
        f"transport: {posture.provider}, database: {posture.database}",
        f"outbox: {_on(posture.outbox)} ({_because(OUTBOX, posture.outbox, posture)})",
        f"inbox: {_on(posture.inbox)} ({_because(INBOX, posture.inbox, posture)})",
    ]
    if len(posture.data_sources) > 1:
        listed = ", ".join(f"{name} ({kind})" for name, kind in posture.data_sources.items())
        lines.append(f"data sources: {listed}; the inbox is in {posture.inbox_source}")
    if refusal := _refusal(posture):
        return [*lines, f"refuses to start: {refusal}"]
    lines.append(f"services: {', '.join(posture.services)}")
    if posture.outbox.enabled:
        lines.append(
            "Events are stored in the transaction that raises them, and relayed until they are handled or "
            "dead-lettered. Local handlers have not run yet when commit returns. It costs a row for each event, "
            "and a relay that polls."
        )
    else:
        lines.append(_sentence(outbox_disabled_notice(posture)))
    lines.append(_inbox_cost(posture))
    return lines


def as_json(posture: Posture) -> dict[str, Any]:
    """The same for machines (P6)."""
    return {
        "provider": posture.provider,
        "database": posture.database,
        "data_sources": dict(posture.data_sources),
        "inbox_source": posture.inbox_source,
        "outbox": {"enabled": posture.outbox.enabled, "source": posture.outbox.source},
        "inbox": {"enabled": posture.inbox.enabled, "source": posture.inbox.source},
        "services": list(posture.services),
    }


def _inbox_cost(posture: Posture) -> str:
    if posture.inbox.enabled:
        helps = (
            ""
            if posture.is_broker or posture.outbox.enabled
            else (" Direct dispatch never redelivers, so this helps only where an event is handed in twice.")
        )
        return (
            "Handled messages are remembered, so changes in this database are made once for each message id; "
            "everything else a handler does happens at least once. It costs a row for each message." + helps
        )
    if posture.is_broker:
        return _sentence(inbox_disabled_warning(posture))
    if posture.outbox.enabled:
        return (
            "Handled messages are not remembered: a row that is handed out again, after a crash or an expired lease, "
            f"repeats the effects of its handlers. {INBOX} = true prevents that, and no migration is needed."
        )
    return "Handled messages are not remembered: direct dispatch never redelivers, so there is nothing to recognise."


def _because(setting: str, resolved: Resolved, posture: Posture) -> str:
    if resolved.source == TRANSPORT:
        return f"{setting} is unset, and the transport is {posture.provider}"
    return f"{setting} = {str(resolved.enabled).lower()}, {resolved.source}"


def _on(resolved: Resolved) -> str:
    return "on" if resolved.enabled else "off"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
