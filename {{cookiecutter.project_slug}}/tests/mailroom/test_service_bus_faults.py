"""What a service goes through with its namespace: losses, restarts, lost locks, a busy service (contract F12, R4, I8).

They need the double that the template has, so a project has none of them.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import databases
import pytest
from rabbitmq_support import Proxy
from service_bus_support import Bus, transport_of
from support import Deposited, done, effect, effects, handling, note, rows, until

from mailroom import Context
from mailroom.errors import LoginRefusedError, PublishError, TransportUnavailableError
from mailroom.messaging.transports.azure_service_bus import intake as intakes
from mailroom.messaging.transports.azure_service_bus.intake import Intake
from mailroom.messaging.transports.azure_service_bus.namespace import Namespace
from mailroom.serialization import encode
from mailroom.settings import ServiceBusSettings

if TYPE_CHECKING:
    from servicebus.double import Double

pytestmark = [
    # What the databases differ in is tried by test_transport.py.
    pytest.mark.parametrize("database_url", databases.KINDS[:1], indirect=True),
    # The client does not close the socket of a connection that fails.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Run = Callable[..., Any]


class Pausing:
    """A handler that waits, the first time, until the test lets it go on."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.attempts: list[int] = []

    async def handle(self, event: Deposited, context: Context[Any]) -> None:
        self.attempts.append(context.attempt)
        effect(context, str(event.amount))
        if not self.begun.is_set():
            self.begun.set()
            await self.go_on.wait()


def told(caplog: pytest.LogCaptureFixture, message: str) -> int:
    return [record.message for record in caplog.records].count(message)


async def is_settled(bus: Bus, double: "Double") -> None:
    """Nothing lies in the service's queue any more."""

    async def is_empty() -> bool:
        return double.held(bus.queue)["active"] == 0

    await until(is_empty)


async def test_a_connection_that_breaks_while_a_handler_runs_repeats_no_effect(
    run_on_bus: Run, bus: Bus, double: "Double"
) -> None:
    pausing = Pausing()
    async with run_on_bus(handling(pausing.handle)) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        await pausing.begun.wait()
        double.drop_connections()
        await mailroom.publish(Deposited(amount=2))
        pausing.go_on.set()
        await done(mailroom, "1", "2")
        await is_settled(bus, double)
    assert await effects(mailroom) == ["1", "2"]


async def test_a_lock_that_is_lost_is_told_and_the_effects_stay_single(
    run_on_bus: Run, bus: Bus, double: "Double", caplog: pytest.LogCaptureFixture
) -> None:
    pausing = Pausing()
    async with run_on_bus(handling(pausing.handle)) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        await pausing.begun.wait()
        double.expire_locks()
        await done(mailroom, "1")  # by the second delivery
        pausing.go_on.set()
        await is_settled(bus, double)

        async def is_told() -> bool:
            return told(caplog, "the lock of a message was lost") == 1

        await until(is_told)
    assert await effects(mailroom) == ["1"]
    assert len(pausing.attempts) == 2


async def test_a_restart_of_the_namespace_loses_nothing(run_on_bus: Run, bus: Bus, double: "Double") -> None:
    pausing = Pausing()
    async with run_on_bus(handling(pausing.handle)) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        await pausing.begun.wait()
        double.restart()
        pausing.go_on.set()
        await mailroom.publish(Deposited(amount=2))
        await done(mailroom, "1", "2")
        await is_settled(bus, double)
    assert await effects(mailroom) == ["1", "2"]


async def test_a_service_is_not_ready_while_nobody_lets_it_in_and_ready_again_after(
    run_on_bus: Run, double: "Double"
) -> None:
    async with run_on_bus(handling(note)) as mailroom:
        assert (await mailroom.health()).ready
        double.refuse_connections()
        double.drop_connections()

        async def is_noticed() -> bool:
            return not (await mailroom.health()).ready

        await until(is_noticed)
        double.refuse_connections(False)

        async def is_ready() -> bool:
            return (await mailroom.health()).ready

        await until(is_ready)
        await mailroom.publish(Deposited(amount=1))
        await done(mailroom, "1")


async def test_a_busy_service_is_a_pause_and_no_fault_of_the_message(run_on_bus: Run, double: "Double") -> None:
    async with run_on_bus(handling(note)) as mailroom:
        double.throttle(3600)
        with pytest.raises(TransportUnavailableError, match="busy"):
            await mailroom.transport.publish(encode(Deposited(amount=1)), 1)
        await mailroom.publish(Deposited(amount=2))

        async def is_paused() -> bool:
            return mailroom.transport.disconnection() is not None

        await until(is_paused)
        double.throttle(0)
        await done(mailroom, "2")
        assert [row.attempts for row in await rows(mailroom)] == [0]


async def test_of_a_batch_that_is_refused_only_the_guilty_message_fails(run_on_bus: Run, double: "Double") -> None:
    async with run_on_bus(handling(note)) as mailroom:
        double.refuse("amqp:not-allowed", times=2)  # the batch, then the first message alone
        outcomes = await asyncio.gather(
            *(mailroom.transport.publish(encode(Deposited(amount=amount)), 1) for amount in range(3)),
            return_exceptions=True,
        )
        await done(mailroom, "1", "2")
    assert [type(outcome) for outcome in outcomes] == [PublishError, type(None), type(None)]


async def test_a_copy_that_cannot_be_stored_leaves_the_message_where_it_is(
    run_on_bus: Run, bus: Bus, double: "Double"
) -> None:
    tries = 0

    async def fail_at_first(event: Deposited, context: Context[Any]) -> None:
        nonlocal tries
        tries += 1
        if tries <= 2:
            double.throttle(3600)
            raise ValueError("no luck")
        effect(context, str(event.amount))

    async with run_on_bus(handling(fail_at_first)) as mailroom:
        await mailroom.publish(Deposited(amount=1))

        async def is_waiting() -> bool:
            return tries == 2

        await until(is_waiting)
        assert double.held(bus.queue)["scheduled"] == 0
        assert double.held(bus.queue)["locked"] == 1
        double.throttle(0)
        await done(mailroom, "1")
        await is_settled(bus, double)


async def test_a_queue_that_was_deleted_is_made_again_and_consumed(run_on_bus: Run, bus: Bus) -> None:
    async with run_on_bus(handling(note)) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        await done(mailroom, "1")
        async with bus.administration() as administration:
            await administration.delete_subscription(bus.topic, bus.prefix)
            await administration.delete_queue(bus.queue)

        async def is_back() -> bool:
            async with bus.administration() as administration:
                return bus.queue in [queue.name async for queue in administration.list_queues()]

        await until(is_back)

        async def is_consuming() -> bool:
            return mailroom.transport.receiver.disconnection() is None

        await until(is_consuming)
        await mailroom.publish(Deposited(amount=2))
        await done(mailroom, "1", "2")


async def test_a_stop_while_the_namespace_is_away_is_bounded_and_leaves_no_task_behind(
    run_on_bus: Run, double: "Double"
) -> None:
    pausing = Pausing()
    try:
        async with run_on_bus(handling(pausing.handle), sections={"shutdown_timeout_seconds": 0.1}) as mailroom:
            await mailroom.publish(Deposited(amount=1))
            await pausing.begun.wait()
            double.stop()
            pausing.go_on.set()
    finally:
        double.start()
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("broker")]
    assert (await effects(mailroom)) in ([], ["1"])


async def test_a_namespace_that_is_away_costs_no_attempt_and_the_service_starts_without_it(
    run_on_bus: Run, double: "Double", caplog: pytest.LogCaptureFixture
) -> None:
    double.stop()
    try:
        async with run_on_bus(handling(note)) as mailroom:
            await mailroom.publish(Deposited(amount=1))
            assert transport_of(mailroom).disconnection() is not None

            async def has_been_tried() -> bool:
                return any(record.message == "transport unavailable" for record in caplog.records)

            await until(has_been_tried)
            double.start()
            await done(mailroom, "1")
            assert [row.attempts for row in await rows(mailroom)] == [0]
    finally:
        double.start()


async def test_a_key_that_is_refused_is_an_error_at_the_start_without_the_key(
    run_on_bus: Run, double: "Double"
) -> None:
    wrong = double.connection_string_with("a-secret-of-another")
    section = {"connection_string": wrong, "declare_topology": False, "connect_timeout_seconds": 20}
    with pytest.raises(LoginRefusedError) as refused:
        async with run_on_bus(handling(note), sections={"service_bus": section}):
            pass
    assert "service_bus.connection_string" in str(refused.value)
    assert "a-secret" not in str(refused.value)


async def test_what_was_taken_before_an_outage_is_settled_after_it_whatever_was_tried_meanwhile(
    run_on_bus: Run, bus: Bus, double: "Double"
) -> None:
    async with run_on_bus(handling(note)) as mailroom:
        namespace = transport_of(mailroom).namespace
    await bus.publish(b"{}")
    intake = Intake(namespace, bus.queue)
    try:
        await intake.open()
        (message,) = await intake.take(1, seconds=10)
        double.refuse_connections()
        double.drop_connections()
        with pytest.raises(TransportUnavailableError):
            await intake.complete(message)
        for _ in range(2):
            with pytest.raises(TransportUnavailableError):
                await intake.open()
        double.refuse_connections(False)
        await intake.open()
        await intake.complete(message)
    finally:
        await intake.close()
        await namespace.close()
    assert double.held(bus.queue)["active"] == 0


async def test_a_connection_that_has_died_without_a_word_is_noticed_though_no_message_is_expected(
    run_on_bus: Run, bus: Bus, double: "Double", monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_on_bus(handling(note)):
        pass
    address = f"127.0.0.1:{double.ports['amqp']}"
    proxy = Proxy(f"amqp://{address}")
    there = (await proxy.start()).removeprefix("amqp://")
    namespace = Namespace(ServiceBusSettings(connection_string=double.connection_string.replace(address, there)))
    intake = Intake(namespace, bus.queue)
    try:
        await intake.open()
        assert await intake.take(1, seconds=0.1) == []
        proxy.is_silent = True
        monkeypatch.setattr(intakes, "SILENCE_SECONDS", 0.0)
        monkeypatch.setattr(intakes, "ANSWER_SECONDS", 0.5)
        with pytest.raises(TransportUnavailableError, match="no answer"):
            await intake.take(1, seconds=0.1)
        assert intake.loss is not None
    finally:
        await intake.close()
        await namespace.close()
        await proxy.stop()


async def test_a_message_that_cannot_be_given_back_at_a_stop_is_no_error(
    run_on_bus: Run, double: "Double", caplog: pytest.LogCaptureFixture
) -> None:
    failed = asyncio.Event()

    async def fail(event: Deposited, context: Context[Any]) -> None:
        failed.set()
        raise OSError

    slowly = {"retry_min_interval_seconds": 60, "retry_max_interval_seconds": 60}
    async with run_on_bus(handling(fail), **slowly) as mailroom:
        await mailroom.publish(Deposited(amount=1))
        await failed.wait()

        async def is_to_be_tried_again() -> bool:
            return told(caplog, "message failed") == 1

        await until(is_to_be_tried_again)
        double.refuse_connections()
        double.drop_connections()
    assert not [record.message for record in caplog.records if record.levelname == "ERROR"]
