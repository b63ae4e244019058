"""Contract R7: a commit wakes the relay, in this process and in others; what is not heard, polling finds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import databases
import pytest
import pytest_asyncio
from sqlalchemy import make_url, text
from support import Compose, Deposited, effects, noting, until

from mailroom import Mailroom, Settings
from mailroom.events import Kind
from mailroom.outbox import wake_up
from mailroom.outbox.wake_up import WakeUp
from mailroom.persistence.database import Database

HOURS = 7200
LISTENERS = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"

Relaying = tuple[Mailroom, Mailroom]

pytestmark = [databases.on_postgres, pytest.mark.reflection]


async def listeners(mailroom: Mailroom) -> int:
    async with mailroom.database.connection() as connection:
        return int((await connection.execute(text(f"SELECT count(*) {LISTENERS}"))).scalar_one())


async def listening(relay: Mailroom, other: Mailroom) -> None:
    async def is_listening() -> bool:
        return await listeners(other) == 1

    await until(is_listening)


async def handled(mailroom: Mailroom, *amounts: str) -> None:
    async def all_of_them() -> bool:
        return sorted(await effects(mailroom)) == sorted(amounts)

    await until(all_of_them)


@pytest_asyncio.fixture
async def relaying(compose: Compose) -> AsyncIterator[Relaying]:
    """A relay that asks the database by itself once in hours, and somebody else who commits.

    What it finds at its start is handled already, so that from here on it has to hear of things.
    """
    relay = await compose(noting(), outbox_on=True, outbox={"polling_interval_seconds": HOURS})
    other = await compose(outbox_on=True)
    await relay.processor.start()
    await listening(relay, other)
    await other.publish(Deposited(amount=0))
    await handled(other, "0")
    yield relay, other
    await relay.processor.stop()


async def test_a_commit_in_another_process_wakes_the_relay(relaying: Relaying) -> None:
    relay, other = relaying
    await other.publish(Deposited(amount=1))
    await handled(other, "0", "1")
    await relay.processor.stop()
    assert await listeners(other) == 0


async def test_many_commits_are_told_together_and_none_is_forgotten(relaying: Relaying) -> None:
    _, other = relaying
    await asyncio.gather(*(other.publish(Deposited(amount=amount)) for amount in range(1, 20)))
    await handled(other, *map(str, range(20)))


async def test_a_process_that_ends_right_after_its_commit_has_told_of_it(relaying: Relaying) -> None:
    relay, other = relaying
    await other.publish(Deposited(amount=1))
    await other.close()
    await handled(relay, "0", "1")


async def test_a_listener_whose_connection_is_ended_connects_again_and_looks_at_what_it_missed(
    relaying: Relaying, caplog: pytest.LogCaptureFixture
) -> None:
    relay, other = relaying
    async with other.database.connection() as connection:
        await connection.execute(text(f"SELECT pg_terminate_backend(pid) {LISTENERS}"))
    await other.publish(Deposited(amount=1))
    await handled(other, "0", "1")
    await listening(relay, other)
    await other.publish(Deposited(amount=2))
    await handled(other, "0", "1", "2")
    (lost,) = [record for record in caplog.records if "no connection" in record.message]
    assert (lost.levelname, lost.reason) == ("WARNING", "the server ended the connection")  # type: ignore[attr-defined]


class Line:
    """A connection to the server that can be made to go dead without anybody being told."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.is_dead = False

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        was_dead = self.is_dead
        there, back = await asyncio.open_connection(*self._target)
        await asyncio.gather(self._carry(reader, back, was_dead), self._carry(there, writer, was_dead))

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, was_dead: bool) -> None:
        while data := await source.read(65536):
            if self.is_dead and not was_dead:
                continue
            sink.write(data)
        sink.close()


@asynccontextmanager
async def line_to(url: str) -> AsyncIterator[tuple[str, Line]]:
    server = make_url(url)
    line = Line(server.host or "", server.port or 5432)
    async with await asyncio.start_server(line, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        yield server.set(host="127.0.0.1", port=port).render_as_string(hide_password=False), line


async def test_a_half_open_connection_is_noticed_and_what_was_missed_is_looked_at(
    compose: Compose, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake_up, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(wake_up, "ANSWER_SECONDS", 0.2)
    other = await compose(outbox_on=True)
    woken: asyncio.Queue[list[Kind]] = asyncio.Queue()
    async with line_to(database_url) as (url, line):
        database = Database(Settings(database={"url": url}).database)
        listener = WakeUp(database, lambda kinds: woken.put_nowait(list(kinds)))
        await listener.start()
        assert await woken.get() == list(Kind)
        line.is_dead = True
        await other.publish(Deposited(amount=1))
        assert await woken.get() == list(Kind)
        await other.publish(Deposited(amount=2))
        assert await woken.get() == [Kind.INTEGRATION]
        await listener.stop()
        await database.dispose()
