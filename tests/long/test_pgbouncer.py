"""Through PgBouncer a service works: with LISTEN in session mode, by polling in transaction mode (contract R7)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from own_pgbouncer import OwnPgBouncer, program
from support import Deposited, create_tables, effects, noting, until

from mailroom import Mailroom, Settings
from mailroom.errors import DatabaseUnavailableError
from mailroom.testing import databases
from mailroom.testing.plugin import fresh_database

COMMITS = 200
AT_ONCE = 20
HOURS = 7200
UNLIMITED = {"statement_timeout_seconds": 0, "lock_timeout_seconds": 0}
UNPREPARED = {"prepared_statement_cache_size": "0"}

Pooler = Callable[[str], OwnPgBouncer]


@pytest.fixture
def pooler(tmp_path: Path) -> Iterator[Pooler]:
    """`pooler("session")`: a context manager, in front of an empty database."""
    found = program()
    if "postgres" not in databases.PRESENT or found is None:
        if databases.is_required("pgbouncer"):
            pytest.fail("no pgbouncer is here: install it")
        pytest.skip("no pgbouncer is here")
    with fresh_database("postgres", tmp_path) as url:
        yield lambda mode: OwnPgBouncer(found, url, mode)


@asynccontextmanager
async def services(url: str, polling_interval_seconds: float) -> AsyncIterator[tuple[Mailroom, Mailroom]]:
    """One that relays, and another one that commits."""
    sections: dict[str, Any] = {
        "database": {"url": url, **UNLIMITED},
        "message_bus": {"enable_outbox": True, "enable_inbox": True},
        "outbox": {"polling_interval_seconds": polling_interval_seconds},
    }
    relay, other = Mailroom(Settings(**sections), handlers=[noting()]), Mailroom(Settings(**sections))
    await create_tables(relay)
    await relay.processor.start()
    try:
        yield relay, other
    finally:
        await relay.processor.stop()
        await relay.close()
        await other.close()


async def commit(other: Mailroom, count: int) -> None:
    for first in range(0, count, AT_ONCE):
        await asyncio.gather(*(other.publish(Deposited(amount=first + number)) for number in range(AT_ONCE)))


async def handled(mailroom: Mailroom, count: int) -> None:
    async def all_of_them() -> bool:
        return len(await effects(mailroom)) >= count

    await until(all_of_them)
    assert sorted(map(int, await effects(mailroom))) == list(range(count))


@contextmanager
def from_info_on(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], int]]:
    """How often something was logged."""
    with caplog.at_level(logging.INFO, logger="mailroom"):
        yield lambda words: sum(words in record.getMessage() for record in caplog.records)


async def test_in_transaction_mode_polling_finds_every_commit_and_it_is_said_that_nothing_is_heard(
    pooler: Pooler, caplog: pytest.LogCaptureFixture
) -> None:
    with pooler("transaction") as pgbouncer, from_info_on(caplog) as logged:
        async with services(pgbouncer.url(**UNPREPARED), polling_interval_seconds=0.2) as (relay, other):

            async def is_said() -> bool:
                return logged("a pooler shares sessions") == 1

            await until(is_said)
            await commit(other, COMMITS)
            await handled(relay, COMMITS)
            await relay.outbox.stats()
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_in_session_mode_a_commit_is_heard_at_once(pooler: Pooler, caplog: pytest.LogCaptureFixture) -> None:
    with pooler("session") as pgbouncer, from_info_on(caplog) as logged:
        async with services(pgbouncer.url(), polling_interval_seconds=HOURS) as (relay, other):
            for count in (1, 2, 3):
                await other.publish(Deposited(amount=count - 1))
                await handled(relay, count)
        assert logged("a pooler") == 0


async def test_limits_that_a_pooler_refuses_are_one_line_with_the_settings_to_change(pooler: Pooler) -> None:
    with pooler("transaction") as pgbouncer:
        mailroom = Mailroom(Settings(database={"url": pgbouncer.url()}))
        with pytest.raises(DatabaseUnavailableError, match=r"database\.statement_timeout_seconds = 0 and") as refused:
            await mailroom.ensure_migrated()
        await mailroom.close()
    assert len(str(refused.value).splitlines()) == 1
