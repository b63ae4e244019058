"""Contract P3-P5, A3: each row of the posture table as a host that is started and looked at."""

import asyncio
import logging
import os
import signal
from typing import Any

import pytest
from support import Broker, Compose, Deposited, effect, effects, inbox_ids, rows, until

from mailroom import ConfigurationError, Context, Handlers, Mailroom
from mailroom.errors import SchemaError
from mailroom.persistence.tables import MailroomBase

handlers = Handlers()


@handlers.on(Deposited)
async def note(event: Deposited, context: Context[Any]) -> None:
    effect(context, str(event.amount))


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def background_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("outbox")]


async def handled(mailroom: Mailroom, amount: int) -> None:
    async def is_there() -> bool:
        return str(amount) in await effects(mailroom) and all(row.processed_on for row in await rows(mailroom))

    await until(is_there)


@pytest.mark.parametrize(
    ("outbox_on", "inbox_on", "services", "is_stored", "is_recorded"),
    [
        (None, None, ("OutboxDisabledNotice",), False, False),
        (False, False, ("OutboxDisabledNotice",), False, False),
        (None, True, ("OutboxDisabledNotice", "OutboxCleanup"), False, True),
        (True, None, ("OutboxProcessor", "OutboxCleanup"), True, False),
        (True, True, ("OutboxProcessor", "OutboxCleanup"), True, True),
    ],
)
async def test_in_process_each_posture_runs_what_the_table_says(
    compose: Compose,
    caplog: pytest.LogCaptureFixture,
    outbox_on: bool | None,
    inbox_on: bool | None,
    services: tuple[str, ...],
    is_stored: bool,
    is_recorded: bool,
) -> None:
    caplog.set_level(logging.INFO, "mailroom")
    mailroom = await compose(handlers, outbox_on=outbox_on, inbox_on=inbox_on)
    async with mailroom.running():
        assert sorted(service.name for service in mailroom.services) == sorted(services)
        assert sorted(mailroom.posture.services) == sorted(services)
        assert ("outbox poll" in background_tasks()) == is_stored
        await mailroom.publish(Deposited(amount=1))
        await handled(mailroom, 1)
        assert bool(await rows(mailroom)) == is_stored
        assert bool(await inbox_ids(mailroom)) == is_recorded
    assert background_tasks() == []
    notices = [line for line in lines(caplog, logging.INFO) if "enable_outbox = true" in line]
    assert len(notices) == (0 if is_stored else 1)
    assert lines(caplog, logging.WARNING) == []


async def test_the_notice_names_everything_that_being_off_costs(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mailroom")
    mailroom = await compose(handlers)
    async with mailroom.running():
        pass
    (notice,) = [line for line in lines(caplog, logging.INFO) if "enable_outbox" in line]
    for fact in ("no rows", "OutboxProcessor", "OutboxCleanup", "not retried", "crash", "no migration"):
        assert fact.lower() in notice.lower()
    assert "\n" not in notice


async def test_rows_from_a_time_when_the_outbox_was_on_are_a_warning_and_drain_sends_them(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    before = await compose(handlers, outbox_on=True)
    for amount in range(3):
        await before.publish(Deposited(amount=amount))
    mailroom = await compose(handlers, outbox_on=False)
    async with mailroom.running():
        pass
    (warning,) = lines(caplog, logging.WARNING)
    assert warning.startswith("3 outbox messages are pending")
    assert "outbox drain" in warning
    assert await mailroom.drain() == 3
    assert sorted(await effects(mailroom)) == ["0", "1", "2"]


@pytest.mark.parametrize(("outbox_on", "inbox_on"), [(None, None), (True, None), (None, True)])
async def test_a_broker_turns_both_on(compose: Compose, outbox_on: bool | None, inbox_on: bool | None) -> None:
    broker = Broker()
    mailroom = await compose(
        handlers,
        outbox_on=outbox_on,
        inbox_on=inbox_on,
        message_bus={"provider": "stand_in"},
        transports={"stand_in": broker},
    )
    assert sorted(mailroom.posture.services) == ["BrokerConsumer", "OutboxCleanup", "OutboxProcessor"]
    async with mailroom.running():
        await mailroom.publish(Deposited(amount=7))

        async def is_sent() -> bool:
            return broker.sent == [7]

        await until(is_sent)


async def test_a_broker_whose_inbox_was_switched_off_says_so_once(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    mailroom = await compose(
        handlers, inbox_on=False, message_bus={"provider": "stand_in"}, transports={"stand_in": Broker()}
    )
    async with mailroom.running():
        assert "InboxDisabledWarning" in [service.name for service in mailroom.services]
    (warning,) = lines(caplog, logging.WARNING)
    for fact in ("deliberate", "enable_inbox", "repeat", "already"):
        assert fact in warning.lower()


@pytest.mark.parametrize("inbox_on", [None, True, False])
async def test_a_broker_without_the_outbox_refuses_to_start(compose: Compose, inbox_on: bool | None) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        await compose(
            handlers,
            outbox_on=False,
            inbox_on=inbox_on,
            message_bus={"provider": "stand_in"},
            transports={"stand_in": Broker()},
        )
    for fact in ("message_bus.enable_outbox", "stand_in", "OutboxProcessor", "remove"):
        assert fact.lower() in str(refusal.value).lower()


async def test_a_provider_that_this_project_does_not_have_is_refused(compose: Compose) -> None:
    with pytest.raises(ConfigurationError, match=r"'pigeons'.*in_process"):
        await compose(handlers, message_bus={"provider": "pigeons"})


async def test_a_database_that_is_not_migrated_is_refused_with_the_command_to_run(compose: Compose) -> None:
    mailroom = await compose(handlers, command="shop")
    async with mailroom.database.engine.begin() as connection:
        await connection.run_sync(MailroomBase.metadata.drop_all)
    with pytest.raises(SchemaError, match="shop db upgrade"):
        async with mailroom.running():
            pass
    with pytest.raises(SchemaError, match="shop db upgrade"):
        await mailroom.run()


async def test_a_service_that_cannot_start_stops_those_before_it(compose: Compose) -> None:
    class Refusing(Broker):
        async def start(self) -> None:
            raise RuntimeError("no broker here")

    mailroom = await compose(handlers, message_bus={"provider": "stand_in"}, transports={"stand_in": Refusing()})
    mailroom.services.reverse()
    with pytest.raises(RuntimeError, match="no broker here"):
        async with mailroom.running():
            pass
    assert background_tasks() == []


async def test_a_service_that_cannot_stop_keeps_no_other_from_stopping(compose: Compose) -> None:
    class Stuck(Broker):
        async def stop(self) -> None:
            raise RuntimeError("it does not stop")

    mailroom = await compose(handlers, message_bus={"provider": "stand_in"}, transports={"stand_in": Stuck()})
    mailroom.services.reverse()
    with pytest.raises(RuntimeError, match="it does not stop"):
        async with mailroom.running():
            pass
    assert background_tasks() == []
    assert (await mailroom.health()).checks[-1].detail == "stopped"


async def test_a_database_that_is_refused_leaves_no_connection_open(compose: Compose) -> None:
    mailroom = await compose(handlers)
    async with mailroom.database.engine.begin() as connection:
        await connection.run_sync(MailroomBase.metadata.drop_all)
    with pytest.raises(SchemaError):
        async with mailroom.running():
            pass
    assert mailroom.database.engine.pool.checkedin() == 0


async def test_running_touches_no_signal_handler(compose: Compose) -> None:
    mailroom = await compose(handlers, outbox_on=True)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    async with mailroom.running():
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_run_stops_on_a_signal_after_finishing_what_is_in_flight(
    compose: Compose, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    entered, go = asyncio.Event(), asyncio.Event()
    slow = Handlers()

    @slow.on(Deposited)
    async def wait(event: Deposited, context: Context[Any]) -> None:
        entered.set()
        await go.wait()
        effect(context, "finished")

    mailroom = await compose(slow, outbox_on=True)
    running = asyncio.create_task(mailroom.run())
    await mailroom.publish(Deposited(amount=1))
    await entered.wait()
    os.kill(os.getpid(), number)
    await asyncio.sleep(0)
    go.set()
    await running
    assert await effects(mailroom) == ["finished"]
    assert "stopping" in caplog.messages
    assert "stopped before it had started" not in caplog.messages


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_run_gives_up_on_a_start_that_takes_too_long_for_who_stops_it(
    compose: Compose, number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    starting, stopped = asyncio.Event(), asyncio.Event()

    class Unreachable(Broker):
        async def start(self) -> None:
            starting.set()
            await asyncio.Event().wait()

        async def stop(self) -> None:
            os.kill(os.getpid(), number)  # somebody is impatient
            for _ in range(10):
                await asyncio.sleep(0)
            stopped.set()

    mailroom = await compose(handlers, message_bus={"provider": "stand_in"}, transports={"stand_in": Unreachable()})
    running = asyncio.create_task(mailroom.run())
    await starting.wait()
    os.kill(os.getpid(), number)
    await running
    assert stopped.is_set()
    assert not running.cancelling()
    assert background_tasks() == []
    assert "stopped before it had started" in caplog.messages


async def test_a_cancellation_of_run_is_no_signal(compose: Compose) -> None:
    mailroom = await compose(handlers, outbox_on=True)
    running = asyncio.create_task(mailroom.run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert background_tasks() == []


async def test_switching_the_outbox_on_or_off_is_a_restart_and_no_schema_work(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    stored: list[int] = []
    for amount, turned_on in enumerate([True, None, True]):
        mailroom = await compose(handlers, outbox_on=turned_on, inbox_on=turned_on)
        async with mailroom.running():
            await mailroom.publish(Deposited(amount=amount))
            await handled(mailroom, amount)
            stored.append(len(await rows(mailroom)))
    assert stored == [1, 1, 2]
    assert lines(caplog, logging.WARNING) == []


async def test_a_handler_timeout_that_is_not_below_the_lease_is_refused(compose: Compose) -> None:
    patient = Handlers()
    patient.on(Deposited, timeout_seconds=300)(note)
    with pytest.raises(ConfigurationError, match=r"note may run for 300 seconds.*outbox\.lease_seconds = 300"):
        await compose(patient)


async def test_publish_takes_an_event_or_a_session_and_an_event(compose: Compose) -> None:
    mailroom = await compose(handlers)
    with pytest.raises(TypeError, match="a session and an event"):
        mailroom.publish("an event")  # type: ignore[call-overload]
