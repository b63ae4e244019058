"""What is wrong with a service, and what to do about it; it needs no composed Mailroom (contract A1, P4)."""

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from mailroom import posture as postures
from mailroom import version
from mailroom.checks import Check, Status
from mailroom.errors import ConfigurationError, DatabaseUnavailableError, SchemaError
from mailroom.outbox.inspection import OutboxInspection
from mailroom.persistence import schema
from mailroom.persistence.database import Database
from mailroom.posture import Posture, named
from mailroom.settings import Settings
from mailroom.settings_sections import DEFAULT_SOURCE
from mailroom.version import VERSION

__all__ = ["Check", "Status", "examine"]

OVERDUE_SECONDS = 60.0
"""A relay takes what is due within its polling interval; what has waited this much longer waits for something else."""
CLOCK_TOLERANCE_SECONDS = 2.0
"""What a time service keeps two machines within, with room for a slow answer."""


async def examine(
    load: Callable[[], Settings], *, command: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> AsyncIterator[Check]:
    """Yields each check as it is made. What cannot be looked at, since an earlier check failed, is left out.

    `load` reads the settings, `command` is the service's command line, `now` is the clock of this process.
    """
    yield _version()
    try:
        settings = load()
    except ConfigurationError as error:
        yield Check(name="settings", status=Status.WRONG, found=str(error))
        return
    yield Check(name="settings", status=Status.OK, found="read, and nothing contradicts")
    posture = postures.resolve(settings)
    yield _posture(posture)
    for name in settings.sources:
        async for check in _source(name, posture, settings, command, now):
            yield check if name == DEFAULT_SOURCE else replace(check, name=named(check.name, name))


def _version() -> Check:
    """An update changes both, so they differ where one is not finished, or a file was changed by hand."""
    recorded = version.recorded()
    if recorded in (None, VERSION):
        return Check(name="version", status=Status.OK, found=f"mailroom {VERSION}")
    return Check(
        name="version",
        status=Status.TO_DO,
        found=f"mailroom {VERSION}, and {version.ANSWERS} says {recorded}",
        remedy="finish the update, or undo it: src/mailroom and that file change together",
    )


async def _source(
    name: str, posture: Posture, settings: Settings, command: str, now: Callable[[], datetime]
) -> AsyncIterator[Check]:
    """The checks of one data source."""
    try:
        database = Database(settings.sources[name])
    except ConfigurationError as error:
        yield Check(name="database", status=Status.WRONG, found=error.found, remedy=error.remedy)
        return
    try:
        reached = await _database(database)
        yield reached
        if reached.status is not Status.OK:
            return
        yield await _schema(database.engine, command, name)
        tables = await _tables(database.engine, command)
        yield tables
        if tables.status is Status.OK:
            async for check in _rows(OutboxInspection(database), posture, settings, command, now):
                yield check
    finally:
        await database.dispose()


def _posture(posture: Posture) -> Check:
    try:
        postures.refuse(posture)
    except ConfigurationError as error:
        return Check(name="posture", status=Status.WRONG, found=f"refuses to start: {error}")
    services = ", ".join(posture.services)
    return Check(name="posture", status=Status.OK, found=f"{posture.provider}, {posture.database}; runs {services}")


async def _database(database: Database) -> Check:
    try:
        await schema.current(database.engine)
    except DatabaseUnavailableError as error:
        return Check(name="database", status=Status.TO_DO, found=error.found, remedy=error.remedy)
    return Check(name="database", status=Status.OK, found=f"answers: {database.safe_url}")


async def _schema(engine: AsyncEngine, command: str, source: str) -> Check:
    try:
        await schema.ensure_migrated(engine, command=command, source=source)
    except SchemaError as error:
        return Check(name="schema", status=Status.TO_DO, found=error.found, remedy=error.remedy)
    except ConfigurationError as error:
        return Check(name="schema", status=Status.WRONG, found=error.found, remedy=error.remedy)
    at = ", ".join(await schema.current(engine))
    return Check(name="schema", status=Status.OK, found=f"at migration {at}" if at else "no migrations, but tables")


async def _tables(engine: AsyncEngine, command: str) -> Check:
    missing = await schema.missing_tables(engine)
    if missing:
        return Check(
            name="tables",
            status=Status.TO_DO,
            found=f"missing: {', '.join(missing)}",
            remedy=f"run: {command} db upgrade",
        )
    return Check(name="tables", status=Status.OK, found="both are there")


async def _rows(
    outbox: OutboxInspection, posture: Posture, settings: Settings, command: str, now: Callable[[], datetime]
) -> AsyncIterator[Check]:
    overdue_seconds = OVERDUE_SECONDS + settings.outbox.polling_interval_seconds
    try:
        stats = await outbox.stats()
        asked = now()
        backlog = await outbox.backlog(overdue_seconds=overdue_seconds)
        answered = now()
    except DBAPIError as error:
        yield Check(
            name="rows",
            status=Status.TO_DO,
            found=f"the tables cannot be read: {error.orig}",
            remedy=f"run: {command} db check",
        )
        return
    pending = f"{stats.pending} pending, {stats.retrying} of them failed before"
    if stats.pending and not posture.outbox.enabled:
        yield Check(
            name="pending",
            status=Status.TO_DO,
            found=f"{pending}, from a time when the outbox was on; nothing sends them while it is off",
            remedy=f"run: {command} outbox drain",
        )
    elif backlog.overdue:
        yield Check(
            name="pending",
            status=Status.TO_DO,
            found=f"{pending}; {backlog.overdue} have been due for more than {overdue_seconds:g} seconds",
            remedy=f"see that `{command} run` is running, and `{command} outbox list --state pending`: an event also "
            "waits for an earlier one with its ordering key",
        )
    else:
        yield Check(name="pending", status=Status.OK, found=pending)
    yield _count(
        "dead letters",
        stats.dead_lettered,
        f"look at them with `{command} outbox list --state dead-lettered`, mend the cause, then replay them",
    )
    yield _count(
        "stale leases",
        backlog.stale,
        f"a relay stopped without finishing them: see that `{command} run` is running, and the next relay takes them "
        "over"
        if posture.outbox.enabled
        else f"run: {command} outbox drain",
    )
    yield _clock(backlog.now, asked, answered)


def _count(name: str, count: int, remedy: str) -> Check:
    if count:
        return Check(name=name, status=Status.TO_DO, found=str(count), remedy=remedy)
    return Check(name=name, status=Status.OK, found="none")


def _clock(theirs: datetime, asked: datetime, answered: datetime) -> Check:
    """The database read its clock between asking and the answer, so only what lies outside of both is a difference."""
    ahead = max((theirs - answered).total_seconds(), 0.0)
    behind = max((asked - theirs).total_seconds(), 0.0)
    difference = max(ahead, behind)
    if difference > CLOCK_TOLERANCE_SECONDS:
        return Check(
            name="clock",
            status=Status.TO_DO,
            found=f"the database is {difference:.1f} seconds {'ahead of' if ahead else 'behind'} this process",
            remedy="set both by one time service: events carry the time of the process, leases and delays go by the "
            "database's",
        )
    return Check(name="clock", status=Status.OK, found=f"database and process agree within {difference:.1f} seconds")
