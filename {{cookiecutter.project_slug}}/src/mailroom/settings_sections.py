"""What can be configured, section by section, with defaults, units and bounds (contract P1, P2).

Each setting is written in settings.toml under its section, or as a variable: `outbox.lease_seconds` is
`OUTBOX__LEASE_SECONDS`. Durations are in the unit that their name ends with.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator
from pydantic_core import PydanticCustomError
from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError


@dataclass(frozen=True)
class Backend:
    """A kind of database, as its URL names it."""

    kind: str
    driver: str
    example: str


DEFAULT_SOURCE = "default"
"""What the data source of the section `database` is called."""
SOURCE_NAME = r"^[a-z][a-z0-9_]*$"

BACKENDS = {
    "sqlite": Backend("sqlite", "aiosqlite", "sqlite+aiosqlite:///./shop.db"),
    "postgresql": Backend("postgres", "asyncpg", "postgresql+asyncpg://shop:secret@127.0.0.1:5432/shop"),
    "mssql": Backend("sqlserver", "aioodbc", "mssql+aioodbc://shop:secret@127.0.0.1:1433/shop"),
}
"""By the first word of the URL. Which of them a project really has, its answers decide."""
ODBC_DRIVER = "ODBC Driver 18 for SQL Server"

SECONDS_PER_DAY = 86_400
ENDPOINT_PREFIX = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"


def _refuse_booleans(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "must be a number")
    return value


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(_refuse_booleans), Field(le=1_000_000)]
Seconds = Annotated[float, BeforeValidator(_refuse_booleans), Field(gt=0, le=366 * SECONDS_PER_DAY)]
Port = Annotated[int, BeforeValidator(_refuse_booleans), Field(ge=1, le=65_535)]
SecondsOrNone = Annotated[float, BeforeValidator(_refuse_booleans), Field(ge=0, le=366 * SECONDS_PER_DAY)]
Days = Annotated[float, BeforeValidator(_refuse_booleans), Field(ge=0, le=36_500)]


class Section(BaseModel):
    """A group of settings. Frozen; unknown names are refused; the docstring below a field describes it."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        str_strip_whitespace=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


class DatabaseSettings(Section):
    """The database that holds the service's tables, the outbox and the inbox."""

    url: SecretStr
    """Where it is, as an SQLAlchemy URL, for example `sqlite+aiosqlite:///./shop.db`. May hold a password."""
    pool_size: Count = Field(10, ge=1)
    """Connections that are kept open."""
    max_overflow: Count = Field(5, ge=0)
    """Connections beyond `pool_size` that are opened under load, and closed after use."""
    pool_timeout_seconds: Seconds = 30
    """How many seconds to wait for a free connection before failing."""
    busy_timeout_seconds: Seconds = 5
    """How many seconds a write waits for another one to finish (SQLite)."""
    connect_timeout_seconds: Seconds = 5
    """How many seconds a server may take to accept a connection."""
    statement_timeout_seconds: SecondsOrNone = 60
    """How many seconds a server may work on one statement; migrations are exempt. 0: no limit of ours."""
    lock_timeout_seconds: SecondsOrNone = 30
    """How many seconds a statement waits on a server for another transaction's lock. 0: no limit of ours."""
    isolation_level: Annotated[
        Literal["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"], BeforeValidator(_upper)
    ] = "READ COMMITTED"
    """How far transactions of the service are kept apart on a server. SQLite's are serializable always."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, given: SecretStr) -> SecretStr:
        return SecretStr(_with_async_driver(given.get_secret_value().strip()))

    @property
    def kind(self) -> str:
        """Which database it is: `sqlite`, `postgres` or `sqlserver`."""
        return self._backend.kind

    @property
    def driver(self) -> str:
        """The package that speaks to it."""
        return self._backend.driver

    @property
    def safe_url(self) -> str:
        """The URL for people: its password masked, without its query, which may hold secrets too."""
        return self._parsed.set(query={}).render_as_string(hide_password=True)

    @property
    def backend(self) -> str:
        """SQLAlchemy's name of it."""
        return self._parsed.get_backend_name()

    @property
    def _backend(self) -> Backend:
        return BACKENDS[self.backend]

    @property
    def _parsed(self) -> URL:
        return make_url(self.url.get_secret_value())


class MessageBusSettings(Section):
    """How events travel, and what happens to those whose handlers fail."""

    provider: str = Field("in_process", min_length=1)
    """The transport. `in_process` hands events to the handlers of this process; anything else is a broker."""
    enable_outbox: bool | None = None
    """Whether events are stored in the transaction that raises them, then relayed. Unset: on for a broker, else off."""
    enable_inbox: bool | None = None
    """Whether handled messages are remembered, so that a second delivery is skipped. Unset: on for a broker."""
    retry_limit: Count = Field(5, ge=0, le=1000)
    """How many times a message from a broker is retried in memory before it is redelivered later."""
    retry_min_interval_seconds: Seconds = 1
    """The wait in seconds before the first retry in memory; it doubles from retry to retry."""
    retry_max_interval_seconds: Seconds = 30
    """The longest wait in seconds between two retries, and between two tries to reach a broker."""
    redelivery_intervals_seconds: tuple[Seconds, ...] = (60, 600, 3600)
    """After how many seconds each a message is redelivered once its retries are used up; then it is dead-lettered."""
    endpoint_prefix: str | None = Field(None, pattern=ENDPOINT_PREFIX, max_length=50)
    """What the names of this service's queues begin with."""
    concurrency: Count = Field(8, ge=1)
    """How many messages are handled at once; each needs a database connection."""
    prefetch: Count = Field(32, ge=1, le=65_535)
    """How many messages a broker hands over ahead, those included that are being handled or wait for a retry."""
    max_payload_bytes: Count = Field(1_000_000, ge=1_000)
    """How large the payload of an event on a broker may be, in bytes. A larger one is dead-lettered."""
    foreign_messages: Literal["refuse", "derive-id"] = "refuse"
    """What becomes of a message whose id is no UUID: it is dead-lettered, or its id is derived from what it holds."""
    cascade_limit: Count = Field(1000, ge=1)
    """With the outbox off: how many events the handlers of one commit may raise in turn, before that is an error."""


SourceName = Annotated[str, Field(pattern=SOURCE_NAME, max_length=40)]


class OutboxSettings(Section):
    """How stored events are relayed, retried and purged. With the outbox off: for `drain`, and to purge the inbox."""

    batch_size: Count = Field(100, ge=1, le=1000)
    """How many rows are claimed at once."""
    max_attempts: Count = Field(5, ge=1, le=1000)
    """After how many failed attempts a row is dead-lettered."""
    polling_interval_seconds: Seconds = 2
    """How often an idle relay looks for rows of other processes, in seconds."""
    lease_seconds: Seconds = 300
    """For how many seconds a claimed row is kept from other relays, if its own dies. Renewed while it works."""
    backoff_base_seconds: Seconds = 10
    """The wait in seconds after the first failed attempt; it doubles from attempt to attempt."""
    backoff_max_seconds: Seconds = 3600
    """The longest wait in seconds between two attempts."""
    retention_days: Days = 7
    """After how many days handled rows of both tables are purged. 0 keeps them for ever."""
    dead_letter_retention_days: Days | None = Field(None, gt=0)
    """After how many days dead letters are purged. Unset keeps them for ever."""
    data_source: str = DEFAULT_SOURCE
    """Which data source holds the inbox, and is the one that handlers write to."""
    cleanup_interval_hours: float = Field(6, gt=0, le=8784)
    """How often the purge runs, in hours."""


class HealthSettings(Section):
    """Where `run` and `running()` answer whether the service is live and ready, over HTTP: /live and /ready."""

    port: Port | None = None
    """The TCP port to listen on. Unset: nothing listens, and `await mailroom.health()` is the way to ask."""
    host: str = Field("127.0.0.1", min_length=1)
    """The address to listen on: this machine only, or `0.0.0.0` for every network that it is in."""


class LoggingSettings(Section):
    """How `run` logs."""

    level: Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], BeforeValidator(_upper)] = "INFO"
    """The least severe level that is written."""
    format: Literal["console", "json"] = "console"
    """`console` for people, `json` for machines."""


def _with_async_driver(text: str) -> str:
    """The URL as the engine needs it. What it raises never quotes the URL: that may hold a password."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise PydanticCustomError(
            "database_url",
            "is not a database URL; one looks like {example}",
            {"example": BACKENDS["sqlite"].example},
        ) from None
    name, _, driver = url.drivername.partition("+")
    name = {"postgres": "postgresql"}.get(name, name)
    if name not in BACKENDS:
        raise PydanticCustomError(
            "database_url",
            "names the database {name}, and mailroom knows: {known}",
            {"name": name, "known": ", ".join(BACKENDS)},
        )
    backend = BACKENDS[name]
    right = f"{name}+{backend.driver}"
    if driver not in ("", backend.driver):
        raise PydanticCustomError(
            "database_url",
            "names the driver {driver}, which is not the async one; write {right}",
            {"driver": driver, "right": right},
        )
    if name == "sqlite":
        _check_sqlite(url, backend.example)
    elif not url.host or not url.database:
        raise PydanticCustomError(
            "database_url",
            "names no {missing}; one looks like {example}",
            {"missing": "host" if not url.host else "database", "example": backend.example},
        )
    if name == "mssql" and "driver" not in url.query:
        url = url.update_query_dict({"driver": ODBC_DRIVER})
    return url.set(drivername=right).render_as_string(hide_password=False)


def _check_sqlite(url: URL, example: str) -> None:
    if url.host:
        raise PydanticCustomError(
            "database_url", "has two slashes where SQLite wants three: {example}", {"example": example}
        )
    if url.username is not None or url.password is not None or url.port is not None:
        raise PydanticCustomError(
            "database_url",
            "names a user, a password or a port, and SQLite has none: {example}",
            {"example": example},
        )
    database = url.database or ""
    in_memory = database in ("", ":memory:") or database.startswith("file::memory:") or "mode=memory" in database
    if in_memory or url.query.get("mode") == "memory":
        raise PydanticCustomError(
            "database_url",
            "is SQLite in memory, where each connection would see another, empty database; "
            "name a file, as in {example}",
            {"example": example},
        )
