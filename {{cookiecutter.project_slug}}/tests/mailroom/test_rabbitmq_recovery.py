"""What a service goes through with its broker: losses, restarts, messages that come back (contract F12, R4, I8)."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import databases
import pytest
from rabbitmq_support import Broker, proxied, transport_of
from support import Deposited, done, effect, effects, handling, note, until

from mailroom import Context
from mailroom.messaging.transports.rabbitmq.connection import Connection

pytestmark = [
    # What the databases differ in is tried by test_transport.py.
    pytest.mark.parametrize("database_url", databases.KINDS[:1], indirect=True),
    # The client leaves callbacks of a broken connection behind when the loop of a test ends.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Run = Callable[..., Any]


class TestRecovery:
    async def test_a_connection_that_breaks_while_a_handler_runs_repeats_no_effect(
        self, run: Run, broker: Broker
    ) -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()
        deliveries = 0

        async def take_a_while(event: Deposited, context: Context[Any]) -> None:
            nonlocal deliveries
            deliveries += 1
            effect(context, str(event.amount))
            begun.set()
            await go_on.wait()

        async with proxied(broker) as proxy, run(handling(take_a_while)) as mailroom:
            await mailroom.publish(Deposited(amount=1))
            await begun.wait()
            before = proxy.connections
            proxy.cut()

            async def is_back() -> bool:
                return proxy.connections >= before + 1 and mailroom.transport.receiver.disconnection() is None

            await until(is_back)
            go_on.set()
            await mailroom.publish(Deposited(amount=2))
            await done(mailroom, "1", "2")

            async def is_empty() -> bool:
                return await broker.length(broker.queue) == 0

            await until(is_empty)
            assert await effects(mailroom) == ["1", "2"]

    async def test_a_service_that_has_nothing_to_publish_is_ready_again_after_a_loss(
        self, run: Run, broker: Broker
    ) -> None:
        async with proxied(broker) as proxy, run(handling(note)) as mailroom:
            assert (await mailroom.health()).ready
            proxy.refuses = True
            proxy.cut()

            async def is_noticed() -> bool:
                return not (await mailroom.health()).ready

            await until(is_noticed)
            proxy.refuses = False

            async def is_ready() -> bool:
                return (await mailroom.health()).ready

            await until(is_ready)

    async def test_a_loss_that_the_channel_has_not_heard_of_yet_is_a_loss(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with run(handling(note)) as mailroom:
            publishing = transport_of(mailroom).link
            before, is_opened = publishing._connection, Connection.is_opened
            assert before is not None
            monkeypatch.setattr(
                Connection, "is_opened", property(lambda self: self is not before and is_opened.__get__(self))
            )
            closing = asyncio.get_running_loop().create_future()
            closing.cancel()
            publishing._note_loss(before, closing)

            async def is_another() -> bool:
                return publishing.is_open and publishing._connection is not before

            await until(is_another)
            await mailroom.publish(Deposited(amount=1))
            await done(mailroom, "1")

    async def test_the_late_end_of_a_connection_that_was_given_up_is_no_loss_of_the_next(self, run: Run) -> None:
        async with run(handling(note)) as mailroom:
            publishing = transport_of(mailroom).link
            before = publishing._connection
            assert before is not None
            await publishing.close()
            await publishing.channel()
            closing = asyncio.get_running_loop().create_future()
            closing.cancel()
            publishing._note_loss(before, closing)
            assert not publishing.lost.is_set()
            assert publishing.problem is None

    async def test_each_loss_of_the_connection_is_told(
        self, run: Run, broker: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        def told(message: str) -> int:
            return [record.message for record in caplog.records if "receiving" in record.name].count(message)

        caplog.set_level(logging.INFO)
        async with proxied(broker) as proxy, run(handling(note)) as mailroom:
            for losses in (1, 2):
                proxy.cut()

                async def is_back(losses: int = losses) -> bool:
                    return told("consuming") == losses + 1

                await until(is_back)
                assert told("broker unavailable") == losses
            await mailroom.publish(Deposited(amount=1))
            await done(mailroom, "1")

    async def test_a_stop_after_a_loss_leaves_no_handler_behind(self, run: Run, broker: Broker) -> None:
        begun = asyncio.Event()

        async def hang(event: Deposited, context: Context[Any]) -> None:
            effect(context, str(event.amount))
            begun.set()
            await asyncio.Event().wait()

        short = {"shutdown_timeout_seconds": 0.1}
        async with proxied(broker) as proxy, run(handling(hang), sections=short) as mailroom:
            await mailroom.publish(Deposited(amount=1))
            await begun.wait()
            proxy.refuses = True
            proxy.cut()

            async def is_noticed() -> bool:
                return mailroom.transport.receiver.disconnection() is not None

            await until(is_noticed)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "broker message"]
        assert await effects(mailroom) == []

    async def test_a_queue_that_was_deleted_is_made_again_and_consumed(
        self, run: Run, broker: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with run(handling(note)) as mailroom:
            await mailroom.publish(Deposited(amount=1))
            await done(mailroom, "1")
            await broker.delete(broker.queue)

            async def is_told() -> bool:
                return any("cancelled the consumer" in str(getattr(one, "reason", "")) for one in caplog.records)

            await until(is_told)

            async def is_back() -> bool:
                return mailroom.transport.receiver.disconnection() is None

            await until(is_back)
            await mailroom.publish(Deposited(amount=2))
            await done(mailroom, "1", "2")

    async def test_a_channel_that_the_broker_closes_is_opened_again(self, run: Run, broker: Broker) -> None:
        async with run(handling(note)) as mailroom:
            await mailroom.publish(Deposited(amount=1))
            await done(mailroom, "1")
            connection = await mailroom.transport.receiver._link._open()
            for channel in list(connection.channels.values()):
                await channel.basic_ack(4711, wait=False)  # an unknown tag: the broker closes the channel for it
            await mailroom.publish(Deposited(amount=2))
            await done(mailroom, "1", "2")

    async def test_a_connection_on_which_nothing_is_heard_is_given_up(self, run: Run, broker: Broker) -> None:
        async with proxied(broker) as proxy, run(handling(note)) as mailroom:
            await mailroom.publish(Deposited(amount=1))
            await done(mailroom, "1")
            proxy.is_silent = True

            async def is_noticed() -> bool:
                return mailroom.transport.receiver.disconnection() is not None

            await until(is_noticed)
            proxy.is_silent = False
            proxy.cut()
            await mailroom.publish(Deposited(amount=2))
            await done(mailroom, "1", "2")

    async def test_a_message_that_came_back_too_often_is_handled_alone(self, run: Run, broker: Broker) -> None:
        busy, company = 0, []

        async def watch(event: Deposited, context: Context[Any]) -> None:
            nonlocal busy
            busy += 1
            effect(context, str(event.amount))
            await context.session.flush()
            for _ in range(20):
                await asyncio.sleep(0)
            company.append((event.amount, busy))
            busy -= 1

        async with run(handling(watch)):
            pass
        for amount in range(4):
            body = json.dumps({"amount": amount}).encode()
            await broker.publish(body, type="bank.deposited", message_id=str(uuid4()))
        async with broker.channel() as channel:
            for _ in range(3):
                message = await (await channel.get_queue(broker.queue, ensure=False)).get()
                assert json.loads(message.body) == {"amount": 0}
                await message.nack(requeue=True)
        async with run(handling(watch)) as mailroom:
            await done(mailroom, "0", "1", "2", "3")
        assert dict(company)[0] == 1

    async def test_a_message_whose_handler_kills_its_process_is_given_up_by_the_broker(
        self, run: Run, broker: Broker
    ) -> None:
        few = {"rabbitmq": {"delivery_limit": 5}}
        async with run(handling(note), sections=few):
            pass
        await broker.publish(b'{"amount": 0}', type="bank.deposited", message_id=str(uuid4()))
        for _ in range(6):  # each a process that took it and died
            async with broker.channel() as channel:
                await (await channel.get_queue(broker.queue, ensure=False)).get()

        async def is_given_up() -> bool:
            return await broker.length(broker.dead_letters) == 1

        await until(is_given_up)
        async with run(handling(note), sections=few) as mailroom:
            (dead,) = await transport_of(mailroom).dead_letters.entries(limit=10)
        assert "delivered too often" in dead.reason
        assert dead.event_type == "bank.deposited"
