"""What the framework says to SQL Server is T-SQL: every statement compiles, and a parser that is not ours reads it.

No server is asked here. With TEST_SQLSERVER_URL the framework's whole suite runs on one.
"""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import sqlglot
from alembic import command as alembic
from alembic.config import Config
from checkout import PROJECT
from sqlalchemy import ClauseElement, insert
from sqlalchemy.dialects.mssql.aioodbc import dialect as aioodbc

from mailroom import IntegrationEvent
from mailroom.events import Kind
from mailroom.inbox.store import SqlInboxStore
from mailroom.outbox.administration import OutboxAdministration
from mailroom.outbox.cleanup import OutboxCleanup
from mailroom.outbox.leases import Claimed, Leases, Settlement, Verdict
from mailroom.outbox.selection import Selection, State
from mailroom.outbox.writer import OutboxWriter
from mailroom.persistence.aggregates import raised_now
from mailroom.persistence.claims.sqlserver import HINTS, SqlServerClaims
from mailroom.persistence.engines.sqlserver import SqlServer as SqlServerEngine
from mailroom.persistence.tables import InboxMessage, MailroomBase, UtcDateTime
from mailroom.settings import OutboxSettings

DIALECT = aioodbc(deprecate_large_types=True)
DRIVER = SimpleNamespace(SQL_VARCHAR="varchar", SQL_WVARCHAR="nvarchar", NUMBER="number", DATETIME="time")
DIALECT.dbapi = DRIVER  # type: ignore[assignment]
"""The driver's names of types are all that is needed of it."""


class Happened(IntegrationEvent, name="sql.happened"):
    what: str


class Answer:
    """One batch of ids wherever ids are asked for, and counts of 1."""

    rowcount = 0
    _of_ids = False

    def __init__(self, ids: Iterator[list[int]]) -> None:
        self._ids = ids

    def all(self) -> list[int]:
        return next(self._ids, []) if self._of_ids else []

    def one(self) -> tuple[Any, ...]:
        return (1, 1, datetime.now(UTC))

    def first(self) -> None:
        return None

    def one_or_none(self) -> None:
        return None

    def scalar_one(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def scalars(self) -> "Answer":
        self._of_ids = True
        return self


class SqlServer:
    """Takes down what it is told; stands in for a `Database`, its connections and its sessions."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.compiled: list[Any] = []
        self.claims = SqlServerClaims()
        self._ids = iter([[1, 2], []] * 20)

    async def execute(self, statement: ClauseElement, parameters: Any = None) -> Answer:
        return self.take_down(statement, parameters)

    async def scalars(self, statement: ClauseElement) -> Answer:
        return self.take_down(statement).scalars()

    def take_down(self, statement: ClauseElement, parameters: Any = None) -> Answer:
        first = parameters[0] if isinstance(parameters, list) else parameters
        told = statement.compile(dialect=DIALECT, column_keys=list(first) if first else None)
        self.said.append(told.construct_expanded_state(first).statement)  # type: ignore[attr-defined]
        self.compiled.append(told)
        return Answer(self._ids)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator["SqlServer"]:
        yield self

    reader = connection


class Connection:
    def __init__(self, server: SqlServer) -> None:
        self.execute = server.take_down


@pytest.fixture
def server() -> SqlServer:
    return SqlServer()


async def everything_that_is_said(server: Any) -> None:
    """Each statement of the relay, of the cleanup, of an operator, of a producer and of the inbox."""
    leases = Leases(server, lease_seconds=60)
    await leases.claim(Kind.INTEGRATION, 50)
    await leases.take_over(Kind.DOMAIN)
    await leases.renew([uuid4(), uuid4()])
    for verdict in Verdict:
        claimed = Claimed(id=7, token=uuid4(), attempts=1, row=None)  # type: ignore[arg-type]
        await leases.write_back([Settlement(claimed=claimed, verdict=verdict, retry_in_seconds=1.5)])
    server.take_down(server.claims.due())

    await OutboxCleanup(server, OutboxSettings(retention_days=36_500, dead_letter_retention_days=1)).run_once()

    outbox = OutboxAdministration(server)
    every = Selection(
        ids=[1, 2], state=State.DEAD_LETTERED, event_type="a", ordering_key="b", older_than=timedelta(hours=1)
    )
    await outbox.replay(every)
    await outbox.discard(every)
    await outbox.purge(timedelta(days=1), dead_letters=True)
    await outbox.purgeable(timedelta(days=1))
    await outbox.backlog(overdue_seconds=60)
    await outbox.entries(every, limit=5, before_id=9)
    await outbox.entry(1, with_payload=True)
    await outbox.groups(every)
    await outbox.held(every)
    await outbox.missing(every)
    with pytest.raises(ValueError, match="not enough values"):
        await outbox.stats()

    events = [Happened(what="a"), Happened(what="b")]
    raised = [raised_now(events[0], delay=timedelta(days=400)), raised_now(events[1], ordering_key="key")]
    OutboxWriter(server, lambda kinds: None).seal(Connection(server), raised)  # type: ignore[arg-type]
    await SqlInboxStore(server, server).already_processed(uuid4())  # type: ignore[arg-type]
    server.take_down(
        insert(InboxMessage).values(message_id=uuid4(), event_type="a", processed_on=server.claims.now()),
    )


async def test_every_statement_is_read_by_a_parser_of_t_sql(server: SqlServer) -> None:
    await everything_that_is_said(server)
    assert len(server.said) >= 30
    for said in server.said:
        known = re.sub(r"IF @result < 0 THROW .*", "", said)  # which that parser does not know
        assert sqlglot.parse(re.sub(r":(\w+)", r"@\1", known), read="tsql"), said
        assert not re.search(r"\bLIMIT\b|\|\||\bFILTER\b|\bRETURNING\b|\bSKIP LOCKED\b|strftime", said), said


async def test_rows_are_claimed_with_hints_under_one_update(server: SqlServer) -> None:
    await Leases(server, lease_seconds=60).claim(Kind.INTEGRATION, 50)  # type: ignore[arg-type]
    (claim,) = server.said
    assert claim.startswith("UPDATE outbox_messages SET lock_token=")
    assert " OUTPUT inserted.id, inserted.message_id" in claim
    assert re.search(r"SELECT TOP \S+ outbox_messages_1.id", claim)
    assert f"FROM outbox_messages AS outbox_messages_1 {HINTS}" in claim
    inner, outer = claim.index("outbox_messages_1.locked_until IS NULL"), claim.index("outbox_messages.locked_until IS")
    assert inner < outer, "the predicate stands again where the row is written"


async def test_what_others_hold_is_skipped_by_all_that_clears_away_and_repairs(server: SqlServer) -> None:
    await everything_that_is_said(server)
    checked = 0
    for said in server.said:
        if said.startswith("DELETE") or ("SET available_on" in said and "lock_token = " not in said):
            assert HINTS in said, said
            checked += 1
    assert checked >= 4


async def test_whatever_leases_rows_chooses_them_with_hints_and_asks_for_its_predicate_again(server: SqlServer) -> None:
    leases = Leases(server, lease_seconds=60)  # type: ignore[arg-type]
    await leases.claim(Kind.DOMAIN, 50)
    await leases.take_over(Kind.DOMAIN)
    await leases.renew([uuid4()])
    claim, take_over, renew = server.said
    for said in (claim, take_over, renew):
        assert said.startswith("UPDATE outbox_messages SET "), said
        assert f"FROM outbox_messages AS outbox_messages_1 {HINTS}" in said
        for column in ("processed_on IS NULL", "dead_lettered_on IS NULL", "locked_until "):
            assert f" outbox_messages_1.{column}" in said
            assert f" outbox_messages.{column}" in said
    for said in (claim, take_over):
        assert " OUTPUT inserted.id, " in said


async def test_parameters_are_bound_in_the_type_of_the_column_that_they_are_compared_with(server: SqlServer) -> None:
    """An nvarchar beside a varchar would make the server convert the column, and scan.

    A uuid goes to the driver as it is, which binds it as uniqueidentifier. A time is given as text, which the server
    converts, since a datetimeoffset takes precedence; so it may be stored, and no column is compared with it.
    """
    await everything_that_is_said(server)
    columns = {column.name: column.type for table in MailroomBase.metadata.sorted_tables for column in table.columns}
    seen = set()
    for compiled in server.compiled:
        given = {
            name: (bound.type, compiled._get_set_input_sizes_lookup().get(bound))
            for bound, name in compiled.bind_names.items()
        }
        for column, name in re.findall(r"\.(\w+) (?:=|<|<=|>|>=|IN) \(?(?::|__\[POSTCOMPILE_)(\w+)", str(compiled)):
            bound = given.get(name) or given.get(re.sub(r"_\d+$", "", name))
            assert bound is not None, (name, str(compiled))
            of_column = columns[column].dialect_impl(DIALECT)
            assert type(bound[0].dialect_impl(DIALECT)) is type(of_column), (column, str(compiled))
            assert not isinstance(bound[0], UtcDateTime), str(compiled)
            seen.add((column, bound[1] if not isinstance(bound[1], tuple) else bound[1][0]))
    assert seen >= {
        ("kind", "varchar"),
        ("event_type", "nvarchar"),
        ("ordering_key", "nvarchar"),
        ("lock_token", None),
        ("message_id", None),
        ("id", "number"),
    }
    as_it_is = columns["lock_token"].dialect_impl(DIALECT).bind_processor(DIALECT)
    assert as_it_is is None
    stored = columns["occurred_on"].dialect_impl(DIALECT).bind_processor(DIALECT)
    moment = datetime(2024, 3, 31, 1, 59, 59, 123456, tzinfo=timezone(timedelta(hours=5.5)))
    assert stored(moment) == "2024-03-30 20:29:59.123456+00:00"


def test_whoever_migrates_takes_a_lock_of_the_application_first(server: SqlServer) -> None:
    driver = SimpleNamespace(_conn=SimpleNamespace(timeout=60))
    kept = []
    connection = SimpleNamespace(
        connection=SimpleNamespace(driver_connection=driver),
        execute=server.take_down,
        detach=lambda: kept.append("out of the pool"),
    )
    SqlServerEngine().before_migrating(connection)  # type: ignore[arg-type]
    assert kept == ["out of the pool"], "another one would get a session without bounds"
    (said,) = server.said
    assert "sp_getapplock @Resource = 'mailroom/migration'" in said
    assert sqlglot.parse(said, read="tsql")
    assert driver._conn.timeout == 0


@pytest.mark.parametrize(("run", "to"), [(alembic.upgrade, "0001"), (alembic.downgrade, "0001:base")])
def test_the_migrations_are_t_sql(run: Any, to: str, tmp_path: Path) -> None:
    ini = tmp_path / "alembic.ini"
    ini.write_text(
        f"[alembic]\nscript_location = {PROJECT}/migrations\npath_separator = os\n"
        "[mailroom]\nmodels = mailroom.persistence.tables:MailroomBase.metadata\n"
    )
    output = StringIO()
    migrations = Config(str(ini), output_buffer=output)
    migrations.attributes["url"] = "mssql+aioodbc://"
    run(migrations, to, sql=True)
    batches = [batch for batch in output.getvalue().split("GO\n") if batch.strip()]
    assert len(batches) > (8 if run is alembic.upgrade else 3)
    for batch in batches:
        assert sqlglot.parse(batch, read="tsql")
