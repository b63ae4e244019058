"""Contract I9: a database that is gone is asked again at a bounded rate, and once it is back, work goes on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from databases import on_servers
from sqlalchemy import make_url
from support import Compose, Deposited, effects, noting, until

from mailroom.backoff import backoff_seconds
from mailroom.events import Kind
from mailroom.outbox import processor, wake_up

HOURS = 7200
TEN_MINUTES = 600
TRIES_IN_TEN_MINUTES = 35
"""Seven until the pause has grown to 30 seconds, then one for each, and some for the spread."""
PER_TRY = 2
"""The driver knocks a second time, without encryption."""
RUNNING = 4
"""Tries that have not failed yet: the lanes, the listener, and one who is told of a commit."""


class Door:
    """The way to a server. While it is closed, whoever comes is counted and sent away, and who was inside is out."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._inside: set[asyncio.StreamWriter] = set()
        self.is_closed = False
        self.knocks = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_closed:
            self.knocks += 1
            writer.close()
            return
        there, back = await asyncio.open_connection(*self._target)
        self._inside |= {writer, back}
        await asyncio.gather(_carry(reader, back), _carry(there, writer), return_exceptions=True)
        self._inside -= {writer, back}

    def close(self) -> None:
        self.is_closed = True
        for writer in self._inside:
            writer.transport.abort()

    def open(self) -> None:
        self.is_closed = False


async def _carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
    sink.close()


@asynccontextmanager
async def door_to(url: str) -> AsyncIterator[tuple[str, Door]]:
    server = make_url(url)
    door = Door(server.host or "", server.port or 0)
    async with await asyncio.start_server(door, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        yield server.set(host="127.0.0.1", port=port).render_as_string(hide_password=False), door
        door.close()


class Pauses:
    """Time is counted instead of waited for: each pause is noted in full, and takes no time."""

    def __init__(self) -> None:
        self.of_lanes: list[float] = []
        self.of_listener: list[float] = []

    def lane(self, failures: int, *, base: float, cap: float) -> float:
        self.of_lanes.append(backoff_seconds(failures, base=base, cap=cap))
        return 0.001

    def listener(self, failures: int, *, base: float, cap: float) -> float:
        self.of_listener.append(backoff_seconds(failures, base=base, cap=cap))
        return 0.001


@on_servers
async def test_minutes_without_a_database_cost_a_few_attempts_each_and_then_work_goes_on(
    compose: Compose, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The polls, which come at an interval that is a setting, are out of the way."""
    pauses = Pauses()
    monkeypatch.setattr(processor, "backoff_seconds", pauses.lane)
    monkeypatch.setattr(wake_up, "backoff_seconds", pauses.listener)
    other = await compose(outbox_on=True)

    async def are_handled(*amounts: str) -> bool:
        return sorted(await effects(other)) == sorted(amounts)

    async with door_to(database_url) as (url, door):
        settings = {"database": {"url": url}, "outbox": {"polling_interval_seconds": HOURS}}
        relay = await compose(noting(), outbox_on=True, **settings)
        await relay.processor.start()
        await other.publish(Deposited(amount=1))
        await until(lambda: are_handled("1"))

        door.close()
        relay.processor.wake(Kind)

        async def ten_minutes_have_passed() -> bool:
            return sum(pauses.of_lanes) > len(Kind) * TEN_MINUTES

        await until(ten_minutes_have_passed)
        attempts = door.knocks
        tries = len(pauses.of_lanes) + len(pauses.of_listener)
        assert attempts >= len(pauses.of_lanes), "nobody asked whether it is back"
        assert attempts <= PER_TRY * (tries + RUNNING)
        assert len(pauses.of_lanes) <= len(Kind) * TRIES_IN_TEN_MINUTES

        door.open()
        await other.publish(Deposited(amount=2))
        relay.processor.wake(Kind)
        await until(lambda: are_handled("1", "2"))
        await relay.processor.stop()
        await relay.close()
