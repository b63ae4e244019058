"""The settings of a service: read from their sources, checked together, each knowing where it was given (contract P2).

What each setting means stands in settings_sections.py, where they are read in settings_sources.py.
"""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr, ValidationError

from mailroom import settings_sources as sources
from mailroom.backoff import longest_backoff_seconds
from mailroom.errors import ConfigurationError
from mailroom.settings_problems import Key, Origin, describe, leaves, unknown
from mailroom.settings_sections import (
    DEFAULT_SOURCE,
    SECONDS_PER_DAY,
    DatabaseSettings,
    HealthSettings,
    LoggingSettings,
    MessageBusSettings,
    OutboxSettings,
    Seconds,
    Section,
    SourceName,
)
from mailroom.settings_transports import RabbitMQSettings, ServiceBusSettings

__all__ = [
    "DatabaseSettings",
    "HealthSettings",
    "LoggingSettings",
    "MessageBusSettings",
    "OutboxSettings",
    "RabbitMQSettings",
    "Section",
    "ServiceBusSettings",
    "Settings",
    "longest_redelivery_seconds",
]

FREE_CONNECTIONS = 2
"""How many connections of the pool stay for the relay's own statements and for cleanup."""


class Settings(Section):
    """Everything that can be configured. A project extends it with sections of its own:

        class ShopSettings(Settings):
            payments: PaymentsSettings = PaymentsSettings()

    `Settings(database=..., ...)` uses what it is given and reads nothing; `Settings.load()` reads the sources. Both
    raise ConfigurationError with every problem at once, one per line.
    """

    database: DatabaseSettings
    data_sources: dict[SourceName, DatabaseSettings] = Field(default_factory=dict)
    """Further databases, by name. Each has both tables, and a relay of its own (contract T5)."""
    message_bus: MessageBusSettings = MessageBusSettings()
    outbox: OutboxSettings = OutboxSettings()
    rabbitmq: RabbitMQSettings = RabbitMQSettings()
    service_bus: ServiceBusSettings = ServiceBusSettings()
    health: HealthSettings = HealthSettings()
    logging: LoggingSettings = LoggingSettings()
    handler_timeout_seconds: Seconds = 60
    """How many seconds a handler may run before that counts as a failure. A handler may have its own timeout."""
    shutdown_timeout_seconds: Seconds = 30
    """How many seconds a stopping service gives to what is in flight."""

    _origins: dict[Key, Origin] = PrivateAttr(default_factory=dict)

    def __init__(self, found: sources.Found | None = None, /, **values: Any) -> None:
        found = found or sources.given_in_code(type(self), values)
        model = found.model or type(self)
        problems = list(found.problems)
        try:
            super().__init__(**sources.complete(type(self), found.values))
        except ValidationError as error:
            problems += describe(error, model, found.origins)
        else:
            self._origins = found.origins
            problems += self.contradictions()
        if problems:
            raise ConfigurationError("\n".join(problems))

    @classmethod
    def load(
        cls,
        *,
        settings_file: Path | None = None,
        env: Mapping[str, str] | None = None,
        dotenv: Path | None = Path(".env"),
        secrets_dir: Path | None = None,
    ) -> Self:
        """What settings.toml, .env, secret files and the environment say; the later beats the earlier (contract P2).

        The file is `settings_file`, else what SETTINGS_FILE names, else settings.toml in the working directory. The
        secret files are those in `secrets_dir`, else in what SECRETS_DIR names, else in /run/secrets if it exists.
        """
        environment = os.environ if env is None else env
        return cls(
            sources.read(cls, settings_file=settings_file, env=environment, dotenv=dotenv, secrets_dir=secrets_dir)
        )

    def source(self, setting: str) -> str | None:
        """Where a setting's value was given, such as "settings.toml"; None if it is a default.

        Raises LookupError if there is no such setting.
        """
        key = tuple(setting.split("."))
        known = leaves(type(self))
        if key not in known and key not in self._origins:
            raise LookupError(unknown(setting, key, known))
        return self._origins[key].source if key in self._origins else None

    @property
    def sources(self) -> dict[str, DatabaseSettings]:
        """Every data source by its name: `database` is `default`."""
        return {DEFAULT_SOURCE: self.database, **self.data_sources}

    def contradictions(self) -> list[str]:
        """What is right by itself and wrong together, one line each. A project that overrides it adds its own."""
        bus, outbox = self.message_bus, self.outbox
        found = []
        if self.handler_timeout_seconds >= outbox.lease_seconds:
            found.append(
                f"{self._said('handler_timeout_seconds')} is not below {self._said('outbox.lease_seconds')}: another "
                "relay could take a message over while its handler still runs; lower the timeout, or raise the lease"
            )
        if bus.retry_min_interval_seconds > bus.retry_max_interval_seconds:
            found.append(
                f"{self._said('message_bus.retry_min_interval_seconds')} is above "
                f"{self._said('message_bus.retry_max_interval_seconds')}: retries could not become rarer; "
                "lower the first, or raise the second"
            )
        if outbox.backoff_base_seconds > outbox.backoff_max_seconds:
            found.append(
                f"{self._said('outbox.backoff_base_seconds')} is above {self._said('outbox.backoff_max_seconds')}: "
                "attempts could not become rarer; lower the first, or raise the second"
            )
        if bus.prefetch < bus.concurrency:
            found.append(
                f"{self._said('message_bus.prefetch')} is below {self._said('message_bus.concurrency')}: so many "
                "messages would never be handled at once; raise the first, or lower the second"
            )
        found += self._wrong_sources()
        if not found:
            found += self._too_small_a_pool()
        return [*found, *self._too_short_a_retention()]

    def _wrong_sources(self) -> list[str]:
        found = []
        if DEFAULT_SOURCE in self.data_sources:
            found.append(
                f"data_sources.{DEFAULT_SOURCE} cannot be: the section database is called so; name it otherwise"
            )
        if self.outbox.data_source not in self.sources:
            found.append(
                f"{self._said('outbox.data_source')} names no data source, so there would be no inbox; there are: "
                f"{', '.join(self.sources)}"
            )
        named: dict[str, str] = {}
        for name, database in self.sources.items():
            first = named.setdefault(database.url.get_secret_value(), name)
            if first != name:
                found.append(f"data_sources.{name} has the same url as {first}: one database would be relayed twice")
        return found

    def _too_short_a_retention(self) -> list[str]:
        days = longest_redelivery_seconds(self) / SECONDS_PER_DAY
        if not 0 < self.outbox.retention_days < days:
            return []
        enough = math.ceil(days * 100) / 100
        return [
            f"{self._said('outbox.retention_days')} is shorter than the {enough:g} days over which a message may be "
            f"redelivered, by {self._said('outbox.max_attempts')}, {self._said('outbox.backoff_max_seconds')} and "
            f"{self._said('message_bus.redelivery_intervals_seconds')}: the inbox would have forgotten it, and its "
            f"effects would be repeated; set outbox.retention_days to {enough:g} or more (0 keeps rows for ever), or "
            "shorten the intervals"
        ]

    def _too_small_a_pool(self) -> list[str]:
        name = self.outbox.data_source
        section = "database" if name == DEFAULT_SOURCE else f"data_sources.{name}"
        pool = self.sources[name]
        needed = self.message_bus.concurrency + FREE_CONNECTIONS
        allowed = pool.pool_size + pool.max_overflow
        if needed <= allowed:
            return []
        fewer = f", or lower message_bus.concurrency to {allowed - FREE_CONNECTIONS}"
        return [
            f"{self._said('message_bus.concurrency')} needs {needed} connections (one for each handled message, "
            f"{FREE_CONNECTIONS} for the relay and its cleanup), and {self._said(f'{section}.pool_size')} with "
            f"{self._said(f'{section}.max_overflow')} allow {allowed}: handlers would fail waiting for one; raise "
            f"{section}.pool_size to {needed - pool.max_overflow} or more"
            + (fewer if allowed > FREE_CONNECTIONS else "")
        ]

    def _said(self, setting: str) -> str:
        """The setting with its value and where that was given."""
        value: Any = self
        for name in setting.split("."):
            value = value[name] if isinstance(value, dict) else getattr(value, name)
        shown = list(value) if isinstance(value, tuple) else value
        given = self._origins.get(tuple(setting.split(".")))
        return f"{setting} = {shown} ({given.source if given else 'default'})"


def longest_redelivery_seconds(settings: Settings) -> float:
    """The longest time over which one message may be handed out again, in seconds, whatever the transport.

    First the relay: each attempt may hold its lease to the end before another relay takes over, and waits follow
    failures. A message that was published at last may then pass through all retries and redeliveries of a broker.
    Counting both always keeps a change of the transport from being a change of the retention.
    """
    bus, outbox = settings.message_bus, settings.outbox
    relay = outbox.max_attempts * outbox.lease_seconds + longest_backoff_seconds(
        outbox.max_attempts - 1, base=outbox.backoff_base_seconds, cap=outbox.backoff_max_seconds
    )
    retries = (bus.retry_limit + 1) * settings.handler_timeout_seconds + longest_backoff_seconds(
        bus.retry_limit, base=bus.retry_min_interval_seconds, cap=bus.retry_max_interval_seconds
    )
    intervals = bus.redelivery_intervals_seconds
    return relay + (len(intervals) + 1) * retries + sum(intervals)
