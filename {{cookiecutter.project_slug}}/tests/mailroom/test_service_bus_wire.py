"""How a message is known on Azure Service Bus (contract I7). What is received was on a namespace."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from broker_shop import FAILURE, JOURNEY, Placed
from service_bus_support import Bus, need_service_bus

from mailroom import serialization
from mailroom.envelope import Message
from mailroom.errors import Reject, UndecodableError
from mailroom.messaging.headers import OF_ITS_JOURNEY, Received
from mailroom.messaging.transports.azure_service_bus import wire
from mailroom.tracing import CORRELATION_ID

NOW = datetime(2026, 2, 1, tzinfo=UTC)
LIMIT = 1_000_000
SERVICE_LENGTH = 4_096
"""Characters of a reason, and of a description, that the service keeps."""

ORDER = replace(
    serialization.encode(Placed(sku="Käse")),
    ordering_key="anna",
    headers={CORRELATION_ID: "c-1", "tenant": "blå"},
)
LONG = replace(FAILURE, reason="x" * 5_000, exception="shop." + "E" * 500, stack="begin" + "ä" * 5_000 + "the end")


def foreign(message_id: Any = None, subject: str | None = "shop.order-placed", **body: Any) -> AmqpAnnotatedMessage:
    """Not as the client makes them: it adds an id to each."""
    properties = AmqpMessageProperties(message_id=message_id, subject=subject)
    return AmqpAnnotatedMessage(properties=properties, **body)


SENT: dict[str, ServiceBusMessage | AmqpAnnotatedMessage] = {
    "ours": wire.outgoing(ORDER, limit=LIMIT),
    "foreign": foreign(data_body=b'{"sku":"tea"}', application_properties={"n": 7}),
    "nameless": foreign(subject=None, data_body=b"{}"),
    "numbered": foreign(17, data_body=b"{}"),
    "text": foreign(value_body='{"sku":"tea"}'),
    "number": foreign(value_body=17),
    "nothing": foreign(value_body=None),
    "map": foreign(value_body={"sku": "tea"}),
    "bytes in a list": foreign(value_body=[b"{}"]),
    "sequence": foreign(sequence_body=[[b"{}"]]),
}
VALUES = ("number", "nothing", "map", "bytes in a list", "sequence")


class Line:
    """A queue of the namespace, as it is once everything has been through it."""

    def __init__(self) -> None:
        self.received: dict[str, ServiceBusReceivedMessage] = {}
        self.aside: dict[str, ServiceBusReceivedMessage] = {}
        """Each that was put aside, received again."""
        self.given_up: list[ServiceBusReceivedMessage] = []
        """Dead letters: with all that a service says, with a long failure, and by somebody else."""

    async def run(self, bus: Bus) -> None:
        async with bus.administration() as administration:
            await administration.create_queue(bus.queue)
        async with bus.client() as client:
            sender, receiver = client.get_queue_sender(bus.queue), client.get_queue_receiver(bus.queue)
            letters = client.get_queue_receiver(bus.queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
            async with sender, receiver, letters:
                await sender.send_messages(list(SENT.values()))
                taken: list[ServiceBusReceivedMessage] = []
                while len(taken) < len(SENT):
                    taken += await receiver.receive_messages(len(SENT) - len(taken), max_wait_time=10)
                self.received = dict(zip(SENT, taken, strict=True))
                await sender.send_messages(
                    [wire.again(self.received[name], JOURNEY, FAILURE, due=NOW) for name in ("ours", "foreign")]
                )
                copies = await receiver.receive_messages(1, max_wait_time=10)
                copies += await receiver.receive_messages(1, max_wait_time=10)
                self.aside = dict(zip(("ours", "foreign"), copies, strict=True))
                for message, reason, description in (
                    (self.received["ours"], FAILURE.reason, wire.description(JOURNEY, FAILURE)),
                    (self.received["foreign"], LONG.reason[: wire.REASON_LENGTH], wire.description(JOURNEY, LONG)),
                    (self.received["nameless"], "the lamp is broken", "by hand"),
                ):
                    await receiver.dead_letter_message(message, reason=reason, error_description=description)
                self.given_up = await letters.peek_messages(3)


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    need_service_bus()
    bus, line = Bus(), Line()
    try:
        asyncio.run(line.run(bus))
        yield line
    finally:
        asyncio.run(bus.clean())


def read(received: Received, *, derive_id: bool = True) -> Message:
    return received.message(limit=LIMIT, derive_id=derive_id)


def sent(text: str) -> dict[str | bytes, Any]:
    """The headers of an order with one header of so many characters."""
    message = replace(ORDER, headers={"note": text})
    return dict(wire.outgoing(message, limit=LIMIT).application_properties or {})


class TestOutgoing:
    def test_what_the_service_has_a_field_for_is_there_and_all_else_is_a_header(self) -> None:
        message = wire.outgoing(ORDER, limit=LIMIT)
        assert b"".join(message.body) == '{"sku":"Käse"}'.encode()
        assert message.message_id == str(ORDER.message_id)
        assert message.subject == "shop.order-placed"
        assert message.content_type == "application/json"
        assert message.correlation_id == "c-1"
        assert message.session_id is None
        assert message.time_to_live is None
        assert message.application_properties == {
            CORRELATION_ID: "c-1",
            "tenant": "blå",
            "mailroom-version": 1,
            "mailroom-occurred-on": ORDER.occurred_on.isoformat(),
            "mailroom-ordering-key": "anna",
        }

    def test_a_correlation_id_that_the_service_would_refuse_stays_a_header_alone(self) -> None:
        for id_, kept in (("c" * 128, "c" * 128), ("c" * 129, None)):
            message = wire.outgoing(replace(ORDER, headers={CORRELATION_ID: id_}), limit=LIMIT)
            assert message.correlation_id == kept
            assert (message.application_properties or {})[CORRELATION_ID] == id_

    def test_a_payload_beyond_the_limit_is_rejected(self) -> None:
        size = len(ORDER.payload.encode())
        wire.outgoing(ORDER, limit=size)
        with pytest.raises(Reject, match="max_payload_bytes"):
            wire.outgoing(ORDER, limit=size - 1)

    def test_headers_beyond_what_the_service_takes_are_rejected_and_counted_in_bytes(self) -> None:
        size = sum(len(str(name).encode()) + len(str(value).encode()) for name, value in sent("").items())
        room = wire.HEADERS_LIMIT - size
        assert sent("x" * room)["note"] == "x" * room
        for text in ("x" * (room + 1), "ä" * (room // 2 + 1), "x" * 64 * 1024):
            with pytest.raises(Reject, match=rf"the headers have .* bytes, and the broker takes {wire.HEADERS_LIMIT}"):
                sent(text)


class TestReceived:
    def test_what_was_sent_is_read_as_it_was(self, line: Line) -> None:
        assert read(wire.received(line.received["ours"]), derive_id=False) == ORDER

    def test_names_and_texts_of_headers_are_texts_and_numbers_stay_numbers(self, line: Line) -> None:
        assert wire.headers(line.received["foreign"]) == {"n": 7}
        assert wire.headers(line.received["ours"])["tenant"] == "blå"
        assert wire.headers(line.received["nameless"]) == {}

    def test_a_message_without_a_name_is_undecodable(self, line: Line) -> None:
        with pytest.raises(UndecodableError, match="its type has 0 characters"):
            read(wire.received(line.received["nameless"]))

    def test_a_message_without_an_id_is_refused_or_known_by_all_that_it_holds(self, line: Line) -> None:
        foreign = wire.received(line.received["foreign"])
        assert foreign.message_id is None
        with pytest.raises(UndecodableError, match="foreign_messages"):
            read(foreign, derive_id=False)
        others = [replace(foreign, body=b"{}"), replace(foreign, event_type="shop.other"), foreign]
        ids = [read(one).message_id for one in others]
        assert len(set(ids)) == 3
        assert ids[2] == read(replace(foreign, headers={})).message_id == UUID(foreign.id)

    def test_an_id_that_is_a_number_is_taken_as_its_text(self, line: Line) -> None:
        assert wire.received(line.received["numbered"]).id == "17"

    def test_a_body_that_is_one_text_is_taken_as_well(self, line: Line) -> None:
        assert json.loads(read(wire.received(line.received["text"])).payload) == {"sku": "tea"}

    @pytest.mark.parametrize("name", VALUES)
    def test_any_other_value_can_be_shown_and_not_be_taken_for_json(self, line: Line, name: str) -> None:
        """Whoever looks at dead letters sees it; no handler does."""
        payload = read(wire.received(line.received[name])).payload
        with pytest.raises(ValueError, match="Expecting value"):
            json.loads(payload)
        assert {"number": "17", "nothing": "None", "map": "tea"}.get(name, "{}") in payload


class TestAgain:
    @pytest.mark.parametrize("name", ["ours", "foreign"])
    def test_a_copy_is_the_same_message_with_what_it_has_been_through(self, line: Line, name: str) -> None:
        """Also one without an id: else a second delivery of it would not be recognised as one."""
        first, copy = wire.received(line.received[name]), wire.received(line.aside[name])
        assert read(copy).message_id == read(first).message_id
        assert (copy.event_type, copy.content_type, copy.body) == (first.event_type, first.content_type, first.body)
        assert copy.journey(now=NOW) == JOURNEY
        assert {n: v for n, v in copy.headers.items() if n not in OF_ITS_JOURNEY} == first.headers
        assert copy.headers["mailroom-reason"] == "Reject: honey is sold out"
        assert line.aside[name].correlation_id == line.received[name].correlation_id

    def test_it_is_handed_out_when_it_is_due(self, line: Line) -> None:
        copy = wire.again(line.received["ours"], JOURNEY, FAILURE, due=NOW)
        assert copy.scheduled_enqueue_time_utc == NOW

    def test_a_replay_is_as_new(self, line: Line) -> None:
        copy = wire.as_new(line.aside["ours"])
        assert copy.application_properties == wire.headers(line.received["ours"])
        assert copy.scheduled_enqueue_time_utc is None
        copy = wire.as_new(line.given_up[0])
        assert copy.application_properties == wire.headers(line.received["ours"])
        assert copy.message_id == str(ORDER.message_id)


class TestDeadLetter:
    def test_what_was_said_when_it_was_given_up_is_read_again(self, line: Line) -> None:
        assert wire.epitaph(line.given_up[0]) == wire.Epitaph(
            reason=FAILURE.reason,
            exception=FAILURE.exception,
            stack=FAILURE.stack,
            attempts=JOURNEY.attempts,
            redeliveries=JOURNEY.redeliveries,
            first_seen=JOURNEY.first_seen,
        )

    def test_one_attempt_and_one_redelivery_are_read_as_well(self) -> None:
        once = replace(JOURNEY, attempts=1, redeliveries=1)
        assert wire.description(once, FAILURE).startswith("1 attempt, 1 redelivery, first seen ")
        assert epitaph_of(wire.description(once, FAILURE)).attempts == 1
        assert epitaph_of(wire.description(once, FAILURE)).redeliveries == 1

    def test_of_a_long_stack_the_end_is_kept_within_what_the_service_takes(self, line: Line) -> None:
        found = wire.epitaph(line.given_up[1])
        assert found.reason == "x" * 1_000
        assert found.exception == LONG.exception[:200]
        assert (found.stack or "").endswith("the end")
        assert len(found.stack or "") > 3_500
        assert len(wire.description(JOURNEY, LONG)) <= SERVICE_LENGTH
        assert len(line.given_up[1].dead_letter_error_description or "") <= SERVICE_LENGTH

    def test_what_somebody_else_gave_up_is_told_in_his_words(self, line: Line) -> None:
        assert wire.epitaph(line.given_up[2]) == wire.Epitaph(
            reason="the service gave it up: the lamp is broken: by hand"
        )

    @pytest.mark.parametrize(
        ("reason", "said"),
        [
            ("MaxDeliveryCountExceeded", "delivered too often without an answer"),
            ("TTLExpiredException", "expired"),
            ("HeaderSizeExceeded", "HeaderSizeExceeded: in its own words"),
        ],
    )
    def test_the_service_s_own_reasons_are_told_for_people(self, reason: str, said: str) -> None:
        found = epitaph_of("in its own words", reason)
        assert found.reason.startswith(f"the service gave it up: {said}")
        assert (found.exception, found.stack, found.attempts, found.first_seen) == (None, None, 0, None)

    def test_a_description_that_only_looks_like_ours_is_told_as_it_is(self) -> None:
        found = epitaph_of("1 attempt, 0 redeliveries, first seen yesterday\nE\nstack")
        assert (found.attempts, found.first_seen) == (0, None)
        assert "first seen yesterday" in found.reason


class Letter:
    """What `epitaph` looks at, in the hands of a test."""

    def __init__(self, reason: str, description: str) -> None:
        self.dead_letter_reason = reason
        self.dead_letter_error_description = description


def epitaph_of(description: str, reason: str = "Reject: no") -> wire.Epitaph:
    return wire.epitaph(Letter(reason, description))  # type: ignore[arg-type]
