"""RabbitMQ beyond what all transports share: messages, confirms, topology, services (contract R4, I7, F1, F3, F13)."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import aio_pika
import databases
import pytest
from rabbitmq_support import Broker, composed, proxied, transport_of
from support import Compose, Deposited, Renamed, done, effect, effects, handling, inbox_ids, note, rows, until

from mailroom import Context, IntegrationEvent
from mailroom.envelope import Message
from mailroom.errors import (
    ConfigurationError,
    ConnectionLostError,
    PublishError,
    Reject,
    TransportUnavailableError,
)
from mailroom.messaging.transports.rabbitmq import link, wire
from mailroom.serialization import encode
from mailroom.testing.plugin import fresh_database

pytestmark = [
    # What the databases differ in is tried by test_transport.py.
    pytest.mark.parametrize("database_url", databases.KINDS[:1], indirect=True),
    # The client leaves callbacks of a broken connection behind when the loop of a test ends.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Run = Callable[..., Any]


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
            with pytest.raises(Reject, match="the broker takes 64000"):
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
        often = [0.3, 1] * 5  # the old version may get the same one several times
        async with run(both, redelivery_intervals_seconds=often) as new:
            async with run(handling(note), redelivery_intervals_seconds=often):
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
