"""Contract A1, I7: what operators do with the dead letters of a queue on Azure Service Bus: look, replay, discard."""

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.amqp import AmqpAnnotatedMessage
from broker_shop import FAILURE, Placed, not_ok
from service_bus_shop import KEPT_ALIVE, Shop, fresh_shop, keep_nothing_alive

from mailroom.checks import Status
from mailroom.cli import output
from mailroom.errors import TransportUnavailableError
from mailroom.messaging.transports.azure_service_bus import dead_letters, wire
from mailroom.messaging.transports.azure_service_bus.intake import Intake

pytestmark = [
    # The client does not close the socket of a connection that fails.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

HISTORY = {"mailroom-attempts", "mailroom-redeliveries", "mailroom-first-seen", "mailroom-reason", "mailroom-stack"}
TOO_LARGE = b"x" * 300_000
"""The service takes 256 kB."""


@pytest.fixture(autouse=True)
def closing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KEPT_ALIVE, keep_nothing_alive, raising=False)


@pytest.fixture
def shop() -> Iterator[Shop]:
    with fresh_shop() as shop:
        yield shop


@pytest.fixture
def made(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The topology is in the namespace."""
    assert shop("topology", "apply").exit_code == 0
    monkeypatch.setattr(dead_letters, "TAKE_SECONDS", 0.5)
    return shop


@pytest.fixture(scope="module")
def lying() -> Iterator[tuple[Shop, list[str]]]:
    """A shop with three dead letters and their ids, for those who only look."""
    with fresh_shop() as shop:
        assert shop("topology", "apply").exit_code == 0
        yield shop, shop.give_up("tea", "honey", "jam")


def ids_of(messages: list[ServiceBusReceivedMessage]) -> list[str | None]:
    return [message.message_id for message in messages]


def look(shop: Shop) -> tuple[list[ServiceBusReceivedMessage], list[ServiceBusReceivedMessage]]:
    """What is in the queue, and what in its dead letters, the oldest first."""

    async def run() -> tuple[list[ServiceBusReceivedMessage], list[ServiceBusReceivedMessage]]:
        async with shop.bus.client() as client:
            queue = client.get_queue_receiver(shop.bus.queue)
            letters = client.get_queue_receiver(shop.bus.queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
            found = await asyncio.gather(queue.peek_messages(500), letters.peek_messages(500))
            return found[0], found[1]

    return asyncio.run(run())


class TestLooking:
    def test_they_are_listed_the_oldest_first_without_what_may_be_private(self, lying: tuple[Shop, list[str]]) -> None:
        shop, ids = lying
        listed = shop.json("dead-letters", "list")
        assert [one["message_id"] for one in listed] == ids
        assert listed[0] == {
            "message_id": ids[0],
            "event_type": "shop.order-placed",
            "reason": "Reject: honey is sold out",
            "exception": "mailroom.errors.Reject",
            "attempts": 6,
            "redeliveries": 3,
            "first_seen": "2026-01-31 00:00:00+00:00",
            "size": len(b'{"sku":"tea"}'),
            "headers": {},
        }

    def test_payload_and_stack_are_listed_where_they_are_asked_for(self, lying: tuple[Shop, list[str]]) -> None:
        shop, _ = lying
        listed = shop.json("dead-letters", "list", "--payload")
        assert [one["payload"] for one in listed] == ['{"sku":"tea"}', '{"sku":"honey"}', '{"sku":"jam"}']
        assert {one["stack"] for one in listed} == {FAILURE.stack}

    def test_a_limit_is_told_with_what_there_is_beyond_it(self, lying: tuple[Shop, list[str]]) -> None:
        shop, ids = lying
        result = shop("dead-letters", "list", "--limit", "2")
        assert [one in result.stdout for one in ids] == [True, True, False]
        assert "2 of 3" in result.stdout
        assert "honey is sold out" in result.stdout
        assert '"sku"' not in result.stdout

    def test_show_has_the_stack_and_the_payload_only_where_it_is_asked_for(self, lying: tuple[Shop, list[str]]) -> None:
        shop, (_, honey, _) = lying
        shown = shop.json("dead-letters", "show", honey)
        assert shown["stack"] == FAILURE.stack
        assert "payload" not in shown
        assert shop.json("dead-letters", "show", honey, "--payload")["payload"] == '{"sku":"honey"}'

    def test_an_unknown_id_is_told(self, lying: tuple[Shop, list[str]]) -> None:
        result = lying[0]("dead-letters", "show", "nobody")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "there is no message nobody" in result.stderr

    def test_doctor_counts_them(self, lying: tuple[Shop, list[str]]) -> None:
        shop, _ = lying
        checks = shop.examined()
        assert not_ok(checks) == {"broker dead letters": Status.TO_DO}
        assert checks["broker dead letters"].found == f"3 in {shop.bus.queue}/$DeadLetterQueue"
        assert "shop dead-letters list" in str(checks["broker dead letters"].remedy)

    @pytest.mark.parametrize(
        "command", [("list",), ("replay", "--all", "--yes"), ("discard", "an-id", "--yes")], ids=" ".join
    )
    def test_without_the_queue_it_is_said_who_makes_it(self, shop: Shop, command: tuple[str, ...]) -> None:
        result = shop("dead-letters", *command)
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert f"there is no queue {shop.bus.queue}" in line
        assert "topology apply" in line


class TestReplay:
    def test_one_by_its_id_goes_back_with_all_attempts_before_it_and_one_that_is_not_there_is_named(
        self, made: Shop
    ) -> None:
        tea, honey, jam = made.give_up("tea", "honey", "jam")
        result = made("dead-letters", "replay", "nobody", honey, "--yes")
        assert result.exit_code == 1
        assert result.stdout.splitlines() == ["1 message replayed", "not there: nobody"]
        (replayed,), left = look(made)
        assert wire.body(replayed) == b'{"sku":"honey"}'
        assert (replayed.message_id, replayed.subject) == (honey, Placed.event_name)
        assert not (HISTORY | set(wire.OF_THE_SERVICE)) & set(wire.headers(replayed))
        assert ids_of(left) == [tea, jam]

    def test_a_message_that_lies_there_twice_is_replayed_with_its_copy(self, made: Shop) -> None:
        copies = [ServiceBusMessage(b"{}", message_id="twice", subject=Placed.event_name) for _ in range(2)]
        asyncio.run(made.dead_letter(*copies))
        assert made.json("dead-letters", "replay", "twice", "--yes")["replayed"] == 2
        assert made.counts() == (2, 0)

    def test_all_of_them_go_in_more_than_one_batch(self, made: Shop) -> None:
        ids = made.give_up(*(f"tea {number}" for number in range(dead_letters.BATCH_SIZE + 1)))
        assert len(made.json("dead-letters", "list", "--limit", "1000")) == len(ids)
        assert made("dead-letters", "replay", "--all", "--yes").stdout.strip() == f"{len(ids)} messages replayed"
        replayed, left = look(made)
        assert sorted(map(str, ids_of(replayed))) == sorted(ids)
        assert left == []

    def test_with_a_limit_no_more_go_and_those_that_were_shown_first(
        self, made: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = made.give_up("tea", "honey", "jam", "figs")
        assert made.json("dead-letters", "replay", "--all", "--limit", "1", "--yes")["replayed"] == 1
        monkeypatch.setattr(output, "has_terminal", lambda: True)
        result = made("dead-letters", "replay", "--all", "--limit", "2", answer="y\n")
        assert result.exit_code == 0
        assert "Replay 2 messages?" in result.stderr
        replayed, left = look(made)
        assert sorted(map(str, ids_of(replayed))) == sorted(ids[:3])
        assert ids_of(left) == ids[3:]

    def test_one_that_fails_again_meanwhile_is_left_to_lie(self, made: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        (tea,) = made.give_up("tea")
        monkeypatch.setattr(dead_letters, "BATCH_SIZE", 1)
        move = dead_letters._move
        moved = []

        async def move_and_fail_again(intake: Intake, batch: list[Any], elsewhere: Any) -> None:
            await move(intake, batch, elsewhere)
            moved.extend(ids_of(batch))
            assert moved == [tea]
            for message in batch:
                await made.dead_letter(wire.as_new(message))

        monkeypatch.setattr(dead_letters, "_move", move_and_fail_again)

        assert made.json("dead-letters", "replay", "--all", "--yes")["replayed"] == 1
        assert ids_of(look(made)[1]) == [tea]

    def test_a_copy_that_cannot_be_stored_stays_a_dead_letter_and_the_others_go(
        self, made: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tea, honey, jam = made.give_up("tea", "honey", "jam")
        as_new = wire.as_new

        def enlarged(message: ServiceBusReceivedMessage) -> ServiceBusMessage:
            return ServiceBusMessage(TOO_LARGE, message_id=honey) if message.message_id == honey else as_new(message)

        monkeypatch.setattr(wire, "as_new", enlarged)
        result = made("dead-letters", "replay", "--all", "--yes")
        assert result.exit_code == 1
        assert "takes fewer" in result.stderr
        replayed, left = look(made)
        assert sorted(map(str, ids_of(replayed))) == sorted([tea, jam])
        assert ids_of(left) == [honey]

    def test_what_is_no_message_can_be_shown_and_replayed_and_discarded(self, made: Shop) -> None:
        asyncio.run(made.dead_letter(AmqpAnnotatedMessage(value_body=17)))
        (letter,) = made.json("dead-letters", "list", "--payload")
        assert "17" in letter["payload"]
        assert made.json("dead-letters", "replay", letter["message_id"], "--yes")["replayed"] == 1
        assert made.counts() == (1, 0)


@pytest.mark.parametrize("verb", ["replay", "discard"])
class TestBoth:
    def test_it_is_asked_first_and_no_means_no_and_yes_means_yes(
        self, made: Shop, verb: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tea, _ = made.give_up("tea", "honey")
        result = made("dead-letters", verb, "--all")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--yes" in result.stderr
        monkeypatch.setattr(output, "has_terminal", lambda: True)
        result = made("dead-letters", verb, tea, answer="n\n")
        assert result.exit_code == 1
        assert f"{verb.capitalize()} 1 message?" in result.stderr
        assert made.counts() == (0, 2)
        assert made("dead-letters", verb, "--all", answer="y\n").exit_code == 0
        assert made.counts() == (2 if verb == "replay" else 0, 0)

    def test_ctrl_c_ends_it_between_two_batches_and_the_others_stay(
        self, made: Shop, verb: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ids = made.give_up("tea", "honey", "jam")
        monkeypatch.setattr(dead_letters, "BATCH_SIZE", 1)
        move = dead_letters._move

        async def press(*arguments: Any) -> None:
            signal.raise_signal(signal.SIGINT)
            await move(*arguments)

        monkeypatch.setattr(dead_letters, "_move", press)
        result = made("dead-letters", verb, "--all", "--yes")
        assert result.exit_code == 130
        assert result.stdout.startswith("interrupted: 1 message ")
        assert ids_of(look(made)[1]) == ids[1:]


def test_one_by_its_id_is_discarded_and_the_others_lie_for_others_at_once(made: Shop) -> None:
    tea, honey, _ = made.give_up("tea", "honey", "jam")
    assert made.json("dead-letters", "discard", honey, "--yes") == {"discarded": 1, "missing": []}
    assert made.json("dead-letters", "discard", tea, "--yes") == {"discarded": 1, "missing": []}
    assert made.counts() == (0, 1)


def test_a_message_whose_removal_is_not_answered_doubles_and_is_not_lost(
    made: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tea,) = made.give_up("tea")

    async def fail(intake: Intake, message: ServiceBusReceivedMessage) -> None:
        raise TransportUnavailableError("no answer")

    monkeypatch.setattr(Intake, "complete", fail)
    assert made("dead-letters", "replay", tea, "--yes").exit_code == 1
    replayed, left = look(made)
    assert (ids_of(replayed), ids_of(left)) == ([tea], [tea])
