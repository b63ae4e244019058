"""Contract A2: what is live, what is ready, and how both are asked for, in code and over HTTP."""

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from databases import on_sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from support import Broker, Compose, Deposited, until

from mailroom import ConfigurationError, Context, Handlers, Health, Mailroom, health, health_endpoint
from mailroom.persistence import schema
from mailroom.persistence.tables import MailroomBase

ON = {"outbox_on": True, "inbox_on": True}
BROKER = {"provider": "stand_in"}


@pytest.fixture
def port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """What a probe is told: the status, and the body."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


async def asked(port: int, path: str) -> tuple[int, dict[str, Any]]:
    return await asyncio.to_thread(ask, port, path)


def wrong(found: Health) -> dict[str, str]:
    return {check.name: check.detail for check in found.checks if not check.ok}


def endpoint_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("health endpoint")]


def task_named(name: str) -> "asyncio.Task[Any] | None":
    return next((task for task in asyncio.all_tasks() if task.get_name() == name), None)


@asynccontextmanager
async def all_connections(mailroom: Mailroom) -> AsyncIterator[list[AsyncConnection]]:
    """Holds every connection that the pool may open."""
    async with AsyncExitStack() as held:
        yield [await held.enter_async_context(mailroom.database.engine.connect()) for _ in range(3)]


FEW_CONNECTIONS: dict[str, Any] = {
    "database": {"pool_size": 3, "max_overflow": 0},
    "message_bus": {"concurrency": 1},
}


class TestHealth:
    async def test_a_host_that_runs_is_live_and_ready(self, compose: Compose) -> None:
        mailroom = await compose(**ON)
        async with mailroom.running():
            found = await mailroom.health()
        assert (found.live, found.ready, wrong(found)) == (True, True, {})
        assert [check.name for check in found.checks] == [
            "OutboxCleanup",
            "OutboxProcessor",
            "host",
            "database",
            "schema",
        ]

    async def test_before_its_start_and_after_its_stop_it_is_live_and_not_ready(self, compose: Compose) -> None:
        mailroom = await compose(**ON)
        before = await mailroom.health()
        async with mailroom.running():
            pass
        after = await mailroom.health()
        assert (before.live, before.ready, wrong(before)) == (True, False, {"host": "not started"})
        assert (after.live, after.ready, wrong(after)) == (True, False, {"host": "stopped"})
        assert [check.name for check in after.checks] == ["host"]  # no connection is taken any more

    async def test_it_can_run_again(self, compose: Compose) -> None:
        mailroom = await compose(**ON)
        for _ in range(2):
            async with mailroom.running():
                assert (await mailroom.health()).ready

    @pytest.mark.parametrize(
        ("task", "service"),
        [
            ("outbox domain", "OutboxProcessor"),
            ("outbox integration", "OutboxProcessor"),
            ("outbox poll", "OutboxProcessor"),
            ("outbox renewal", "OutboxProcessor"),
            ("outbox write-back", "OutboxProcessor"),
            ("outbox cleanup", "OutboxCleanup"),
        ],
    )
    async def test_a_task_that_died_makes_it_neither_live_nor_ready(
        self, compose: Compose, task: str, service: str
    ) -> None:
        mailroom = await compose(**ON)
        async with mailroom.running():

            async def runs() -> bool:
                return task_named(task) is not None

            await until(runs)
            victim = task_named(task)
            assert victim is not None
            victim.cancel()
            await asyncio.wait([victim])
            found = await mailroom.health()
            assert (found.live, found.ready) == (False, False)
            assert wrong(found) == {service: f"the task {task!r} was cancelled"}

    async def test_how_a_task_died_is_told_without_what_its_error_said(
        self, compose: Compose, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mailroom = await compose(**ON)

        async def fail() -> None:
            raise ValueError("password=hunter2")

        monkeypatch.setattr(mailroom.cleanup, "_run", fail)
        async with mailroom.running():

            async def died() -> bool:
                return not (await mailroom.health()).live

            await until(died)
            assert wrong(await mailroom.health()) == {
                "OutboxCleanup": "the task 'outbox cleanup' failed with ValueError"
            }

    @on_sqlite
    async def test_a_database_that_is_gone_makes_it_not_ready_and_leaves_it_live(
        self, compose: Compose, tmp_path: Path
    ) -> None:
        (tmp_path / "disk").mkdir()
        mailroom = await compose(database={"url": f"sqlite:///{tmp_path / 'disk' / 'bank.db'}"})
        async with mailroom.running():
            assert (await mailroom.health()).ready
            await mailroom.database.dispose()
            shutil.rmtree(tmp_path / "disk")
            found = await mailroom.health()
        assert (found.live, found.ready) == (True, False)
        assert "unable to open database file" in wrong(found)["database"]

    async def test_a_database_that_does_not_answer_in_time_is_asked_once_until_it_does(
        self, compose: Compose, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(health, "DATABASE_SECONDS", 0.05)
        mailroom = await compose(**FEW_CONNECTIONS)
        async with mailroom.running():
            async with all_connections(mailroom):
                for _ in range(3):
                    found = await mailroom.health()
                    assert (found.live, found.ready) == (True, False)
                    assert wrong(found) == {"database": "has not answered within 0.05 seconds"}
                assert [task.get_name() for task in asyncio.all_tasks()].count("health database") == 1

            async def is_ready() -> bool:
                return (await mailroom.health()).ready

            await until(is_ready)

    async def test_a_database_that_does_not_answer_does_not_hold_up_the_end(
        self, compose: Compose, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(health, "DATABASE_SECONDS", 0.05)
        mailroom = await compose(**FEW_CONNECTIONS)
        async with all_connections(mailroom) as held:
            assert not (await mailroom.health()).ready
            await mailroom.close()
            assert task_named("health database") is None
            for connection in held:  # the pool that they came from takes none back any more
                await connection.invalidate()

    async def test_a_schema_that_lacks_something_makes_it_not_ready_and_leaves_it_live(self, compose: Compose) -> None:
        mailroom = await compose()
        async with mailroom.running():
            async with mailroom.database.engine.begin() as connection:
                await connection.run_sync(MailroomBase.metadata.drop_all)
            found = await mailroom.health()
        assert (found.live, found.ready) == (True, False)
        assert wrong(found) == {"schema": "missing: inbox_messages, outbox_messages"}

    async def test_the_migration_that_the_code_needs_counts_too(self, compose: Compose, alembic_ini: Path) -> None:
        mailroom = await compose()
        assert wrong(await mailroom.health())["schema"] == "it is not migrated, and this code needs 0001"
        async with mailroom.database.engine.begin() as connection:
            await connection.run_sync(MailroomBase.metadata.drop_all)
        await schema.upgrade(mailroom.database.engine, ini=alembic_ini)
        assert "schema" not in wrong(await mailroom.health())

    async def test_migrations_that_cannot_be_found_are_told(
        self, compose: Compose, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mailroom = await compose()
        monkeypatch.setenv(schema.INI_VARIABLE, "elsewhere.ini")
        assert "elsewhere.ini" in wrong(await mailroom.health())["schema"]

    async def test_while_it_stops_it_is_live_and_not_ready(self, compose: Compose) -> None:
        entered, go = asyncio.Event(), asyncio.Event()
        slow = Handlers()

        @slow.on(Deposited)
        async def wait(event: Deposited, context: Context[Any]) -> None:
            entered.set()
            await go.wait()

        mailroom = await compose(slow, **ON)
        running = asyncio.create_task(mailroom.run())
        await mailroom.publish(Deposited(amount=1))
        await entered.wait()
        os.kill(os.getpid(), signal.SIGTERM)

        async def stops() -> bool:
            return wrong(await mailroom.health()) == {"host": "stopping"}

        await until(stops)
        assert (await mailroom.health()).live
        go.set()
        await running

    async def test_a_transport_without_its_connection_makes_it_not_ready_and_leaves_it_live(
        self, compose: Compose
    ) -> None:
        class Lonely(Broker):
            def disconnection(self) -> str | None:
                return "nobody answers"

        mailroom = await compose(message_bus=BROKER, transports={"stand_in": Lonely()})
        async with mailroom.running():
            found = await mailroom.health()
        assert (found.live, found.ready) == (True, False)
        assert wrong(found) == {"connection of stand_in": "nobody answers"}

    async def test_a_service_that_cannot_tell_is_taken_to_run(self, compose: Compose) -> None:
        mailroom = await compose(message_bus=BROKER, transports={"stand_in": Broker()})
        async with mailroom.running():
            assert (await mailroom.health()).ready


class TestEndpoint:
    async def test_it_answers_200_with_the_checks(self, compose: Compose, port: int) -> None:
        mailroom = await compose(**ON, health={"port": port})
        assert mailroom.posture.services[0] == mailroom.services[0].name == "HealthEndpoint"
        async with mailroom.running():
            status, live = await asked(port, "/live")
            assert (status, live["ok"]) == (200, True)
            assert [check["name"] for check in live["checks"]] == ["HealthEndpoint", "OutboxCleanup", "OutboxProcessor"]
            status, ready = await asked(port, "/ready?verbose")
            assert (status, ready["ok"]) == (200, True)
            assert {"name": "database", "ok": True, "detail": "answers"} in ready["checks"]

    async def test_it_answers_503_where_a_check_is_not_fine(self, compose: Compose, port: int) -> None:
        mailroom = await compose(**ON, health={"port": port})
        async with mailroom.running():
            async with mailroom.database.engine.begin() as connection:
                await connection.run_sync(MailroomBase.metadata.drop_all)
            assert (await asked(port, "/live"))[0] == 200
            status, body = await asked(port, "/ready")
            assert (status, body["ok"]) == (503, False)
            dead = task_named("outbox poll")
            assert dead is not None
            dead.cancel()
            await asyncio.wait([dead])
            assert (await asked(port, "/live"))[0] == 503

    async def test_it_answers_nothing_else(self, compose: Compose, port: int) -> None:
        def status(method: str, path: str) -> int:
            connection = HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request(method, path)
            response = connection.getresponse()
            assert response.getheader("Server") == "mailroom"
            connection.close()
            return response.status

        mailroom = await compose(health={"port": port})
        async with mailroom.running():
            assert await asyncio.to_thread(status, "GET", "/") == 404
            assert await asyncio.to_thread(status, "POST", "/live") == 501

    async def test_a_blocked_event_loop_is_neither_live_nor_ready(
        self, compose: Compose, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(health_endpoint, "LOOP_SECONDS", 0.05)
        mailroom = await compose(health={"port": port})
        async with mailroom.running():
            answers = []
            for path in ("/live", "/ready"):
                probe = threading.Thread(target=lambda path=path: answers.append(ask(port, path)))
                probe.start()
                probe.join()  # blocks the loop until the answer is there
            assert [status for status, _ in answers] == [503, 503]
            for _, body in answers:
                (check,) = body["checks"]
                assert check["name"] == "event loop"
                assert "0.05 seconds" in check["detail"]
            monkeypatch.undo()
            assert (await asked(port, "/live"))[0] == 200

    async def test_an_examination_that_fails_is_503_and_logged(
        self, compose: Compose, port: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Confused(Broker):
            def failure(self) -> str | None:
                raise ValueError("password=hunter2")

        mailroom = await compose(message_bus=BROKER, transports={"stand_in": Confused()}, health={"port": port})
        async with mailroom.running():
            status, body = await asked(port, "/live")
        assert status == 503
        assert body["checks"] == [{"name": "examination", "ok": False, "detail": "failed with ValueError; see the log"}]
        assert "health could not be examined" in caplog.messages

    async def test_it_starts_before_the_others_and_stops_after_them(self, compose: Compose, port: int) -> None:
        told: list[tuple[int, int, str]] = []

        async def look() -> None:
            live, _ = await asked(port, "/live")
            ready, body = await asked(port, "/ready")
            (host,) = [check["detail"] for check in body["checks"] if check["name"] == "host"]
            told.append((live, ready, host))

        class Watched(Broker):
            async def start(self) -> None:
                await look()

            async def stop(self) -> None:
                await look()

        mailroom = await compose(message_bus=BROKER, transports={"stand_in": Watched()}, health={"port": port})
        async with mailroom.running():
            await look()
        assert told == [(200, 503, "starting"), (200, 200, "running"), (200, 503, "stopping")]
        with pytest.raises(ConnectionRefusedError):
            ask(port, "/live")

    async def test_without_a_port_nothing_listens(self, compose: Compose) -> None:
        mailroom = await compose(**ON)
        async with mailroom.running():
            assert endpoint_threads() == []
            assert "HealthEndpoint" not in mailroom.posture.services

    async def test_it_leaves_no_thread_behind_and_can_start_again(self, compose: Compose, port: int) -> None:
        mailroom = await compose(health={"port": port})
        for _ in range(2):
            async with mailroom.running():
                assert (await asked(port, "/ready"))[0] == 200
                assert endpoint_threads() == ["health endpoint"]
            assert endpoint_threads() == []

    async def test_it_may_be_stopped_twice_and_before_its_start(self, compose: Compose, port: int) -> None:
        (endpoint, *_) = (await compose(health={"port": port})).services
        await endpoint.stop()
        await endpoint.start()
        await endpoint.stop()
        await endpoint.stop()
        with pytest.raises(ConnectionRefusedError):
            ask(port, "/live")

    async def test_a_client_that_says_nothing_holds_up_neither_others_nor_the_stop(
        self, compose: Compose, port: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(health_endpoint._Request, "timeout", 300)
        mailroom = await compose(health={"port": port})
        async with mailroom.running():
            silent = socket.create_connection(("127.0.0.1", port))
            assert (await asked(port, "/live"))[0] == 200
        silent.close()

    async def test_a_client_that_goes_away_and_ordinary_requests_leave_no_line(
        self, compose: Compose, port: int, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        caplog.set_level(logging.DEBUG, "mailroom.health_endpoint")
        mailroom = await compose(health={"port": port})
        async with mailroom.running():
            await asked(port, "/live")
            rude = socket.create_connection(("127.0.0.1", port))
            rude.sendall(b"GET /live")
            rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell
            rude.close()

            async def noticed() -> bool:
                return "a question about health was not answered" in caplog.messages

            await until(noticed)
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
        assert capfd.readouterr().err == ""

    async def test_a_thread_that_has_ended_is_not_live(self, compose: Compose, port: int) -> None:
        mailroom = await compose(health={"port": port})
        async with mailroom.running():
            endpoint = mailroom.services[0]
            await endpoint.stop()
            assert wrong(await mailroom.health()) == {"HealthEndpoint": "its thread has ended"}

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    async def test_a_port_in_use_is_refused_in_one_line_that_names_the_setting(
        self, compose: Compose, host: str
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = other.getsockname()[1]
            mailroom = await compose(health={"port": taken, "host": host})
            with pytest.raises(ConfigurationError) as refusal:
                async with mailroom.running():
                    pass
        text = str(refusal.value)
        for fact in (f"health.port = {taken}", host, "in use", "HEALTH__PORT"):
            assert fact in text
        assert "\n" not in text
        assert endpoint_threads() == []

    async def test_a_host_that_is_nowhere_is_refused(self, compose: Compose, port: int) -> None:
        mailroom = await compose(health={"port": port, "host": "no such host"})
        with pytest.raises(ConfigurationError, match=r"health\.host = no such host"):
            async with mailroom.running():
                pass
