"""RabbitMQ beyond what all transports share: topology, confirms, recovery (contract R4, I7, F1, F12, F13)."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aio_pika
import databases
import pytest
import rabbitmq_support
from aiormq import spec
from rabbitmq_support import Broker, proxied, transport_of
from support import Compose, Deposited, Renamed, done, effect, effects, handling, inbox_ids, note, rows, until

from mailroom import Context, Handlers, IntegrationEvent, Mailroom
from mailroom.envelope import Message
from mailroom.errors import (
    ConfigurationError,
    ConnectionLostError,
    PublishError,
    Reject,
    TransportUnavailableError,
    UndecodableError,
)
from mailroom.messaging.attempts import Failure, Journey
from mailroom.messaging.transports.rabbitmq import link, wire
from mailroom.messaging.transports.rabbitmq.connection import Connection
from mailroom.serialization import encode
from mailroom.testing.plugin import fresh_database

# The client leaves callbacks of a broken connection behind when the loop of a test ends.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Run = Callable[..., Any]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with rabbitmq_support.broker() as own:
        yield own


@pytest.fixture(params=databases.KINDS[:1])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """One kind; what the databases differ in is tried by test_transport.py."""
    with fresh_database(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def run(compose: Compose, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`async with run(handlers, sections={"rabbitmq": ...}, **bus) as mailroom`."""

    async def is_migrated(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr("mailroom.host.ensure_migrated", is_migrated)

    @asynccontextmanager
    async def running(
        *handlers: Handlers, sections: dict[str, Any] | None = None, **bus: Any
    ) -> AsyncIterator[Mailroom]:
        async with (await composed(compose, broker, *handlers, sections=sections, **bus)).running() as mailroom:
            yield mailroom

    return running


async def composed(
    compose: Compose,
    broker: Broker,
    *handlers: Handlers,
    sections: dict[str, Any] | None = None,
    **bus: Any,
) -> Mailroom:
    given = sections or {}
    quick = broker.settings(**bus) | {
        "outbox": {"polling_interval_seconds": 0.05, "retention_days": 0, "backoff_base_seconds": 0.05}
    }
    quick["rabbitmq"]["heartbeat_seconds"] = 1
    merged = {name: {**section, **given.get(name, {})} for name, section in quick.items()}
    return await compose(*handlers, **{**given, **merged})


async def taken(broker: Broker, queue: str) -> Any:
    """The oldest message of a queue, once there is one."""
    found: list[Any] = []

    async def is_there() -> bool:
        message = await broker.take(queue)
        found.extend([message] if message is not None else [])
        return bool(found)

    await until(is_there)
    return found[0]


class TestOnTheWire:
    async def test_an_event_is_a_persistent_json_message_with_id_type_time_and_headers(
        self, run: Run, broker: Broker
    ) -> None:
        listening = f"{broker.another_service()}.events"
        sent = Deposited(amount=3)
        async with run() as mailroom:
            async with broker.channel() as channel:
                queue = await channel.declare_queue(listening)
                await queue.bind(broker.exchange, Deposited.event_name)
            async with mailroom.transaction() as session:
                mailroom.publish(session, sent, ordering_key="anna")
            message = await taken(broker, listening)
        assert json.loads(message.body) == {"amount": 3, "account": "anna"}
        assert message.routing_key == message.type == "bank.deposited"
        assert message.message_id == str(sent.message_id)
        assert message.content_type == "application/json"
        assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
        assert abs(message.timestamp - sent.occurred_on) < timedelta(seconds=1)
        assert message.headers["mailroom-version"] == 1
        assert message.headers["mailroom-ordering-key"] == "anna"
        assert message.headers["mailroom-occurred-on"] == sent.occurred_on.isoformat()

    @pytest.mark.parametrize(
        ("body", "properties", "reason"),
        [
            (b'{"amount": 1}', {"message_id": "17"}, "no UUID"),
            (b"\xff", {"message_id": str(uuid4())}, "no UTF-8"),
            (b"a=1", {"message_id": str(uuid4()), "content_type": "text/plain"}, "content type"),
            (b"[]", {"message_id": str(uuid4())}, "JSON object"),
            (b"{}" + b" " * 2_000, {"message_id": str(uuid4())}, "max_payload_bytes"),
            (b"{}", {"message_id": str(uuid4()), "headers": {"mailroom-version": "new"}}, "version"),
        ],
    )
    async def test_what_is_no_message_is_dead_lettered_at_once_with_the_reason(
        self, run: Run, broker: Broker, body: bytes, properties: dict[str, Any], reason: str
    ) -> None:
        async with run(handling(note), max_payload_bytes=1_000):
            await broker.publish(body, type="bank.deposited", **properties)
            dead = await taken(broker, broker.dead_letters)
        assert dead.body == body
        assert reason in dead.headers["mailroom-reason"]
        assert dead.headers["mailroom-exception"] == "mailroom.errors.UndecodableError"
        assert 0 < len(dead.headers["mailroom-stack"]) <= 4_000
        assert dead.headers["mailroom-first-seen"]
        assert dead.type == "bank.deposited"

    async def test_a_foreign_message_may_be_given_an_id_that_follows_from_its_own(
        self, run: Run, broker: Broker
    ) -> None:
        async with run(handling(note), foreign_messages="derive-id") as mailroom:
            for amount, given in ((1, "17"), (1, "17"), (2, "18")):
                body = json.dumps({"amount": amount}).encode()
                await broker.publish(body, type="bank.deposited", message_id=given)
            await done(mailroom, "1", "2")
            assert len(await inbox_ids(mailroom)) == 2

    def test_a_message_without_any_id_is_refused_or_known_by_all_that_it_holds(self) -> None:
        """Clients for Python add an id by themselves; others do not."""

        def read(body: bytes, *, derive_id: bool = True, **properties: Any) -> UUID:
            found = spec.Basic.Properties(message_type="bank.deposited", **properties)
            return wire.message_of(found, "bank.deposited", body, limit=1_000, derive_id=derive_id).message_id

        with pytest.raises(UndecodableError, match=r"foreign_messages"):
            read(b"{}", derive_id=False)
        assert read(b"{}") == read(b"{}")
        at = datetime(2026, 1, 1, tzinfo=UTC)
        assert len({read(b"{}"), read(b"[]"), read(b"{}", timestamp=at), read(b"{}", message_id="17")}) == 4

    def test_a_message_without_any_id_is_the_same_message_after_it_was_put_aside(self) -> None:
        """Else a second delivery of it would not be recognised as one, once the first had to be tried again."""
        found = spec.Basic.Properties(message_type="bank.deposited")
        journey, failure = Journey(first_seen=datetime.now(UTC)), Failure.of(ValueError("no"))
        aside = wire.put_aside(found, "bank.deposited", b"{}", journey, failure)
        first, again = (
            wire.message_of(one, "bank.deposited", b"{}", limit=1_000, derive_id=True) for one in (found, aside)
        )
        assert first.message_id == again.message_id

    async def test_an_event_of_an_unknown_version_is_put_aside_before_it_is_given_up(
        self, run: Run, broker: Broker
    ) -> None:
        """During a rolling deployment an older instance gets what only the newer one knows; it has to come again."""
        newer = {"type": "bank.deposited", "headers": {"mailroom-version": 2}}
        message_id = str(uuid4())
        async with run(handling(note), redelivery_intervals_seconds=[60]):
            await broker.publish(b'{"amount": 1}', message_id=message_id, **newer)
            aside = await taken(broker, f"{broker.prefix}.redelivery.60s")
        assert aside.message_id == message_id
        assert (aside.headers["mailroom-attempts"], aside.headers["mailroom-redeliveries"]) == (1, 1)


class TestPublishing:
    async def test_an_event_that_nobody_takes_is_published_and_told_once_for_its_name(
        self, run: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with run() as mailroom:
            for amount in range(3):
                await mailroom.publish(Deposited(amount=amount))

            async def are_processed() -> bool:
                return (await mailroom.outbox.stats()).processed == 3

            await until(are_processed)
        assert [record.message for record in caplog.records].count("nobody takes this event") == 1

    async def test_where_a_route_is_required_an_event_that_nobody_takes_is_a_failure(self, run: Run) -> None:
        async with run(sections={"rabbitmq": {"require_route": True}, "outbox": {"max_attempts": 2}}) as mailroom:
            await mailroom.publish(Deposited(amount=1))

            async def is_given_up() -> bool:
                return (await mailroom.outbox.stats()).dead_lettered == 1

            await until(is_given_up)
            (row,) = await rows(mailroom)
        assert row.last_error is not None
        assert "no queue is bound to bank.deposited" in row.last_error
        assert row.attempts == 2

    async def test_what_is_too_large_is_given_up_alone_and_never_sent(self, run: Run, broker: Broker) -> None:
        async with run(handling(note), max_payload_bytes=1_000) as mailroom:
            async with mailroom.transaction() as session:
                mailroom.publish(session, Deposited(amount=1, account="x" * 2_000))
                mailroom.publish(session, Deposited(amount=2))
            await done(mailroom, "2")

            async def is_given_up() -> bool:
                return (await mailroom.outbox.stats()).dead_lettered == 1

            await until(is_given_up)
            assert "max_payload_bytes allows 1000" in str((await rows(mailroom))[0].last_error)

    async def test_headers_that_fit_into_no_frame_are_refused(self, run: Run) -> None:
        async with run() as mailroom:
            with pytest.raises(Reject, match="one frame"):
                await mailroom.transport.publish(encode(Deposited(amount=1), headers={"big": "x" * 70_000}), 1)

    async def test_a_message_in_flight_when_the_connection_breaks_is_a_suspect(self, run: Run, broker: Broker) -> None:
        async with proxied(broker) as proxy, run(handling(note)) as mailroom:
            proxy.is_silent = True
            sending = asyncio.create_task(mailroom.transport.publish(encode(Deposited(amount=1)), 1))
            publisher = transport_of(mailroom)._publisher

            async def is_in_flight() -> bool:
                return publisher.in_flight == 1

            await until(is_in_flight)
            proxy.cut()
            with pytest.raises(ConnectionLostError, match="in flight"):
                await sending
            proxy.is_silent = False

    async def test_what_closes_the_channel_is_known_by_being_alone_on_it(self, run: Run) -> None:
        """Among others nobody knows which message it was, so each of them is a suspect, the last one too."""
        async with run() as mailroom:
            transport = transport_of(mailroom)

            def send(message: Message, **given: Any) -> Awaitable[bool]:
                properties = wire.properties_of(message)
                for name, value in given.items():
                    setattr(properties, name, value)
                return transport._publisher.send(transport.topology.exchange, message.event_type, b"{}", properties)

            with pytest.raises(PublishError, match="closed the channel"):
                await send(encode(Deposited(amount=1)), user_id="somebody else")
            together = send(encode(Deposited(amount=2)), user_id="somebody else"), send(encode(Deposited(amount=3)))
            outcomes = await asyncio.gather(*together, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [ConnectionLostError, ConnectionLostError]

    async def test_what_the_broker_does_not_confirm_in_time_is_a_suspect(self, run: Run, broker: Broker) -> None:
        slow = {"confirm_timeout_seconds": 0.2, "connect_timeout_seconds": 0.5, "heartbeat_seconds": 60}
        async with proxied(broker) as proxy, run(sections={"rabbitmq": slow}) as mailroom:
            proxy.is_silent = True
            with pytest.raises(ConnectionLostError, match="confirm_timeout_seconds"):
                await mailroom.transport.publish(encode(Deposited(amount=1)), 1)

    async def test_messages_that_are_overdue_one_after_another_are_suspects_each(
        self, run: Run, broker: Broker
    ) -> None:
        """The second one's time is up while the first still waits for the connection to be given up."""
        slow = {"confirm_timeout_seconds": 0.3, "connect_timeout_seconds": 0.5, "heartbeat_seconds": 60}
        async with proxied(broker) as proxy, run(sections={"rabbitmq": slow}) as mailroom:
            proxy.is_silent = True
            publisher, sending = transport_of(mailroom)._publisher, []
            for number in range(1, 4):
                before = asyncio.get_running_loop().time()
                sending.append(asyncio.create_task(mailroom.transport.publish(encode(Deposited(amount=number)), 1)))

                async def is_later(number: int = number, before: float = before) -> bool:
                    return publisher.in_flight == number and asyncio.get_running_loop().time() > before + 0.02

                await until(is_later)
            for outcome in await asyncio.gather(*sending, return_exceptions=True):
                assert isinstance(outcome, ConnectionLostError)
            assert publisher.in_flight == 0

    async def test_a_broker_that_is_away_costs_no_attempt_and_the_service_starts_without_it(
        self, run: Run, broker: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with proxied(broker) as proxy:
            proxy.refuses = True
            async with run(handling(note)) as mailroom:
                await mailroom.publish(Deposited(amount=1))
                assert not (await mailroom.health()).ready
                assert (await mailroom.health()).live

                async def has_been_tried() -> bool:
                    return any(record.message == "transport unavailable" for record in caplog.records)

                await until(has_been_tried)
                proxy.refuses = False
                await done(mailroom, "1")
                assert [row.attempts for row in await rows(mailroom)] == [0]
                assert (await mailroom.health()).ready
        told = [record for record in caplog.records if record.message == "broker unavailable"]
        assert told
        assert all("127.0.0.1" in str(record.reason) for record in told)  # type: ignore[attr-defined]
        assert "guest:guest" not in caplog.text

    async def test_a_login_that_is_refused_is_an_error_at_the_start_without_the_password(
        self, run: Run, broker: Broker
    ) -> None:
        broker.url = broker.url.replace("guest:guest@", "guest:hush@")
        with pytest.raises(TransportUnavailableError, match="refuses the login") as refused:
            async with run(handling(note)):
                pass
        assert "hush" not in str(refused.value)
        assert "rabbitmq.url" in str(refused.value)

    async def test_a_virtual_host_that_is_not_there_is_named(self, compose: Compose, broker: Broker) -> None:
        sections = broker.settings()
        sections["rabbitmq"]["url"] = f"{broker.url.rstrip('/')}/nowhere"
        mailroom = await compose(**sections)
        with pytest.raises(TransportUnavailableError, match="there is no virtual host nowhere, or it is closed"):
            await mailroom.ensure_connected()


class TestTopology:
    async def test_declaring_twice_changes_nothing(self, run: Run) -> None:
        for amount in (1, 2):
            async with run(handling(note)) as mailroom:
                await mailroom.publish(Deposited(amount=amount))
                await done(mailroom, *map(str, range(1, amount + 1)))

    @pytest.mark.parametrize(
        ("queue", "arguments"),
        [
            ("events", {"x-queue-type": "classic"}),
            ("dead-letters", {"x-queue-type": "quorum", "x-max-length": 3}),
            ("redelivery.0.3s", {"x-queue-type": "quorum", "x-message-ttl": 7}),
        ],
    )
    async def test_a_queue_that_is_there_with_other_arguments_is_one_clear_error(
        self, run: Run, broker: Broker, queue: str, arguments: dict[str, Any]
    ) -> None:
        async with broker.channel() as channel:
            await channel.declare_queue(f"{broker.prefix}.{queue}", durable=True, arguments=arguments)
        with pytest.raises(ConfigurationError) as refused:
            async with run(handling(note)):
                pass
        assert f"the queue {broker.prefix}.{queue}" in str(refused.value)
        assert "its x-" in str(refused.value)
        assert "declare_topology = false" in str(refused.value)

    async def test_an_exchange_of_another_type_is_one_clear_error(self, run: Run, broker: Broker) -> None:
        async with broker.channel() as channel:
            await channel.declare_exchange(broker.exchange, "fanout", durable=True)
        with pytest.raises(ConfigurationError, match=f"the exchange {broker.exchange}.*its type is fanout"):
            async with run():
                pass

    async def test_what_an_operator_owns_is_not_declared(
        self, run: Run, broker: Broker, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with run(handling(note), sections={"rabbitmq": {"declare_topology": False}}) as mailroom:
            assert not (await mailroom.health()).ready
            (told,) = [record for record in caplog.records if record.message == "broker unavailable"]
            assert f"there is no queue {broker.queue}" in str(told.reason)  # type: ignore[attr-defined]
            await transport_of(mailroom).topology.declare(link.Link(mailroom.settings.rabbitmq, "an operator"))
            await mailroom.publish(Deposited(amount=1))
            await done(mailroom, "1")

    async def test_only_integration_events_with_a_handler_are_bound_under_each_of_their_names(
        self, compose: Compose, broker: Broker
    ) -> None:
        class Moved(IntegrationEvent, name="bank.moved", aliases=("bank.relocated",)):
            pass

        handlers = handling(note)
        handlers.on(Moved)(note)
        handlers.on(Renamed)(note)
        mailroom = await composed(compose, broker, handlers)
        assert transport_of(mailroom).topology.bindings == ("bank.deposited", "bank.moved", "bank.relocated")

    @pytest.mark.parametrize("missing", ["url", "endpoint_prefix"])
    async def test_what_it_needs_is_asked_for_by_name(self, compose: Compose, broker: Broker, missing: str) -> None:
        sections = broker.settings()
        for section in sections.values():
            section.pop(missing, None)
        with pytest.raises(ConfigurationError, match=rf"\.{missing}"):
            await compose(**sections)


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
            return [record.message for record in caplog.records if "receiver" in record.name].count(message)

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


class TestTwoCopies:
    async def test_two_copies_that_are_handled_side_by_side_have_their_effects_once(
        self, run: Run, broker: Broker
    ) -> None:
        """F3: both are delivered before either of them is committed."""
        release = asyncio.Event()

        async def hold(event: Deposited, context: Context[Any]) -> None:
            await release.wait()
            effect(context, str(event.amount))

        async with run(handling(hold)) as mailroom:
            receiver, message = transport_of(mailroom).receiver, encode(Deposited(amount=1))
            await asyncio.gather(*(mailroom.transport.publish(message, 1) for _ in range(2)))

            async def are_both_here() -> bool:
                return len(receiver._handling) == 2

            await until(are_both_here)
            release.set()
            await done(mailroom, "1")
        assert await effects(mailroom) == ["1"]
        assert await broker.length(broker.queue) == await broker.length(broker.dead_letters) == 0


class TestRollingDeployment:
    async def test_an_event_that_the_old_version_does_not_know_waits_for_the_new_one(
        self, run: Run, broker: Broker
    ) -> None:
        class Closed(IntegrationEvent, name="bank.closed"):
            amount: int

        both = handling(note)
        both.on(Closed)(note)
        async with run(both, redelivery_intervals_seconds=[0.3, 1, 60]) as new:
            async with run(handling(note), redelivery_intervals_seconds=[0.3, 1, 60]):
                for amount in range(20):
                    await new.publish(Closed(amount=amount) if amount % 2 else Deposited(amount=amount))

                async def is_busy() -> bool:
                    return len(await effects(new)) >= 5

                await until(is_busy)
            await done(new, *map(str, range(20)))
            assert await broker.length(broker.dead_letters) == 0


class TestTwoServices:
    async def test_each_service_gets_its_own_copy_and_a_redelivery_reaches_one_alone(
        self, run: Run, broker: Broker, tmp_path: Path
    ) -> None:
        failed: list[UUID] = []

        async def fail_at_first(event: Deposited, context: Context[Any]) -> None:
            if len(failed) < 3:
                failed.append(context.message_id)
                raise ValueError("no luck")
            effect(context, f"shipping {event.amount}")

        async with run(handling(note)) as bank:
            another = broker.another_service()
            with ThreadPoolExecutor() as thread:  # making a database starts a loop of its own
                stack = ExitStack()
                folder = tmp_path / "shipping"
                folder.mkdir()
                kind = databases.KINDS[0]
                url = thread.submit(stack.enter_context, fresh_database(kind, folder)).result()
            own = {"database": {"url": url}}
            async with run(handling(fail_at_first), endpoint_prefix=another, sections=own) as shipping:
                await bank.publish(Deposited(amount=1))

                async def both_have_it() -> bool:
                    return bool(await effects(bank)) and bool(await effects(shipping))

                await until(both_have_it)
                assert (await effects(bank), await effects(shipping)) == (["1"], ["shipping 1"])
        assert len(failed) == 3
