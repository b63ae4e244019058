"""Contract A1, I7: what operators do with the dead letters of a broker: look, replay, discard."""

import signal
from typing import Any

import pytest
from aiormq import Channel, spec
from broker_shop import Placed
from click.testing import Result
from rabbitmq_broker import Shop, on_channel

from mailroom.cli import output
from mailroom.errors import MailroomError
from mailroom.messaging.transports.rabbitmq import RabbitMQTransport, dead_letters

HISTORY = {"mailroom-attempts", "mailroom-redeliveries", "mailroom-first-seen", "mailroom-reason", "mailroom-stack"}


@pytest.fixture
def made(shop: Shop) -> Shop:
    """The topology is on the broker."""
    assert shop("topology", "apply").exit_code == 0
    return shop


def ids_of(messages: list[Any]) -> list[str]:
    return [message.header.properties.message_id for message in messages]


class TestLooking:
    def test_they_are_listed_the_oldest_first_without_what_may_be_private(self, made: Shop) -> None:
        ids = made.give_up("tea", "honey", "jam")
        listed = made.json("dead-letters", "list")
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
        shown = made("dead-letters", "list").stdout
        assert "honey is sold out" in shown
        assert "jam" not in shown

    def test_payloads_are_listed_where_they_are_asked_for(self, made: Shop) -> None:
        made.give_up("jam")
        assert '{"sku":"jam"}' in made("dead-letters", "list", "--payload").stdout
        assert made.json("dead-letters", "list", "--payload")[0]["payload"] == '{"sku":"jam"}'

    def test_a_limit_is_told_with_what_there_is_beyond_it(self, made: Shop) -> None:
        ids = made.give_up("tea", "honey", "jam")
        result = made("dead-letters", "list", "--limit", "2")
        assert [one in result.stdout for one in ids] == [True, True, False]
        assert "2 of 3" in result.stdout

    def test_one_that_was_looked_at_is_there_for_others_at_once(self, made: Shop) -> None:
        ids = made.give_up("tea", "honey", "jam")

        async def look_twice(transport: RabbitMQTransport) -> list[list[str]]:
            letters = transport.dead_letters
            return [[one.message_id for one in await letters.entries(limit=limit)] for limit in (1, None)]

        assert made.on_transport(look_twice) == [ids[:1], ids]
        assert made.count("dead-letters") == 3

    def test_whoever_looks_at_the_oldest_leaves_the_others_to_others_meanwhile(self, made: Shop) -> None:
        ids = made.give_up("tea", "honey", "jam")

        async def next_one(channel: Channel) -> str | None:
            delivered = await channel.basic_get(f"{made.name}.dead-letters")
            return delivered.header.properties.message_id

        async def look(transport: RabbitMQTransport) -> str | None:
            async with transport.dead_letters._taking((), 1) as batches:
                async for batch in batches:
                    assert [taken.message_id for taken in batch] == ids[:1]
                    return await on_channel(made.url, next_one)
            return None

        assert made.on_transport(look) == ids[1]

    def test_show_has_the_stack_and_the_payload_only_where_it_is_asked_for(self, made: Shop) -> None:
        _, honey = made.give_up("tea", "honey")
        shown = made.json("dead-letters", "show", honey)
        assert "honey is sold out" in shown["stack"]
        assert "payload" not in shown
        assert made.json("dead-letters", "show", honey, "--payload")["payload"] == '{"sku":"honey"}'
        assert "2026-01-31T00:00:00Z" in made("dead-letters", "show", honey).stdout

    def test_an_unknown_id_is_told(self, made: Shop) -> None:
        result = made("dead-letters", "show", "nobody")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "there is no message nobody" in result.stderr

    def test_without_the_queue_it_is_said_who_makes_it(self, shop: Shop) -> None:
        result = shop("dead-letters", "list")
        assert result.exit_code == 1
        assert f"there is no queue {shop.name}.dead-letters" in result.stderr
        assert "topology apply" in result.stderr


class TestReplay:
    def test_one_by_its_id_goes_back_to_the_service_with_all_attempts_before_it(self, made: Shop) -> None:
        tea, honey, jam = made.give_up("tea", "honey", "jam")
        assert made.json("dead-letters", "replay", honey, "--yes") == {"replayed": 1, "missing": []}
        (replayed,) = made.take("events")
        properties = replayed.header.properties
        assert replayed.body == b'{"sku":"honey"}'
        assert (properties.message_id, properties.message_type) == (honey, Placed.event_name)
        assert properties.delivery_mode == 2
        assert not HISTORY & set(properties.headers or {})
        assert ids_of(made.take("dead-letters")) == [tea, jam]

    def test_an_id_that_is_not_there_is_named_and_the_others_are_replayed(self, made: Shop) -> None:
        tea, honey = made.give_up("tea", "honey")
        result = made("dead-letters", "replay", "nobody", tea, "--yes")
        assert result.exit_code == 1
        assert result.stdout.splitlines() == ["1 message replayed", "not there: nobody"]
        assert ids_of(made.take("dead-letters")) == [honey]

    def test_a_message_that_lies_there_twice_is_replayed_with_its_copy(self, made: Shop) -> None:
        (tea,) = made.give_up("tea")
        (copy,) = made.take("dead-letters")
        for _ in range(2):
            made.publish(copy.body, f"{made.name}.dead-letters", copy.header.properties, exchange="")
        assert made.json("dead-letters", "replay", tea, "--yes")["replayed"] == 2
        assert made.count("dead-letters") == 0

    def test_all_of_them_go_in_more_than_one_batch(self, made: Shop) -> None:
        ids = made.give_up(*(f"tea {number}" for number in range(2 * dead_letters.BATCH_SIZE + 1)))
        assert made("dead-letters", "replay", "--all", "--yes").stdout.strip() == f"{len(ids)} messages replayed"
        assert sorted(ids_of(made.take("events"))) == sorted(ids)
        assert made.count("dead-letters") == 0

    def test_with_a_limit_no_more_go(self, made: Shop) -> None:
        ids = made.give_up("tea", "honey", "jam")
        assert made.json("dead-letters", "replay", "--all", "--limit", "2", "--yes")["replayed"] == 2
        assert ids_of(made.take("dead-letters")) == ids[2:]

    def test_one_that_fails_again_meanwhile_is_left_to_lie(self, made: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        (tea,) = made.give_up("tea")
        monkeypatch.setattr(dead_letters, "BATCH_SIZE", 1)
        move = dead_letters.RabbitMQDeadLetters._move
        moves = 0

        async def move_and_fail_again(letters: Any, batch: list[Any], elsewhere: Any) -> None:
            nonlocal moves
            for taken in batch:
                moves += 1
                assert moves == 1
                await letters._publisher.send("", letters.place, taken.delivered.body, taken.properties)
            await move(letters, batch, elsewhere)

        monkeypatch.setattr(dead_letters.RabbitMQDeadLetters, "_move", move_and_fail_again)
        assert made.json("dead-letters", "replay", "--all", "--yes")["replayed"] == 1
        assert ids_of(made.take("dead-letters")) == [tea]

    def test_those_that_were_shown_go_and_no_others(self, made: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        """Looking changes what the broker hands out next."""
        ids = made.give_up("tea", "honey", "jam", "figs")
        assert len(made.json("dead-letters", "list")) == 4
        monkeypatch.setattr(output, "has_terminal", lambda: True)
        assert made("dead-letters", "replay", "--all", "--limit", "2", answer="y\n").exit_code == 0
        assert sorted(ids_of(made.take("events"))) == sorted(ids[:2])

    def test_what_the_service_s_queue_refuses_stays_a_dead_letter(self, shop: Shop) -> None:
        async def declare(channel: Channel) -> None:
            await channel.queue_declare(f"{shop.name}.dead-letters", durable=True, arguments={"x-queue-type": "quorum"})
            full = {"x-max-length": 1, "x-overflow": "reject-publish"}
            await channel.queue_declare(f"{shop.name}.events", durable=True, arguments=full)

        shop.sections["rabbitmq"]["declare_topology"] = False
        shop.on_channel(declare)
        ids = shop.give_up("tea", "honey", "jam")
        result = shop("dead-letters", "replay", "--all", "--yes")
        assert result.exit_code == 1
        assert "refused" in result.stderr
        kept = ids_of(shop.take("dead-letters"))
        assert len(kept) == 2
        assert sorted(kept + ids_of(shop.take("events"))) == sorted(ids)

    def test_without_the_service_s_queue_it_is_made_again(self, made: Shop) -> None:
        made.give_up("tea")

        async def delete(channel: Channel) -> None:
            await channel.queue_delete(f"{made.name}.events")

        made.on_channel(delete)
        result = made("dead-letters", "replay", "--all", "--yes")
        assert result.exit_code == 0
        assert made.count("dead-letters") == 0
        assert made.count("events") == 1

    def test_what_the_broker_gave_up_keeps_its_name_and_has_an_id_even_if_it_came_without_one(self, made: Shop) -> None:
        nameless = spec.Basic.Properties(content_type="application/json")
        assert made.publish(b'{"sku":"tea"}', Placed.event_name, nameless, exchange=made.name)

        async def never_answer(channel: Channel) -> None:
            queue = f"{made.name}.events"
            while isinstance((taken := await channel.basic_get(queue)).delivery, spec.Basic.GetOk):
                await channel.basic_nack(taken.delivery_tag or 0)

        made.on_channel(never_answer)
        made.wait_for(1, "dead-letters")
        (letter,) = made.json("dead-letters", "list")
        assert letter["event_type"] == Placed.event_name
        assert "delivered too often" in letter["reason"]
        assert made.json("dead-letters", "replay", letter["message_id"], "--yes")["replayed"] == 1
        (replayed,) = made.take("events")
        assert replayed.header.properties.message_type == Placed.event_name
        assert not any(name.startswith("x-") and "death" in name for name in replayed.header.properties.headers or {})


class TestDiscard:
    def test_one_by_its_id_is_gone(self, made: Shop) -> None:
        tea, honey = made.give_up("tea", "honey")
        assert made.json("dead-letters", "discard", tea, "--yes") == {"discarded": 1, "missing": []}
        assert ids_of(made.take("dead-letters")) == [honey]
        assert made.count("events") == 0

    def test_all_of_them_are_gone(self, made: Shop) -> None:
        made.give_up("tea", "honey")
        assert made("dead-letters", "discard", "--all", "--yes").stdout.strip() == "2 messages discarded"
        assert made("dead-letters", "discard", "--all", "--yes").stdout.strip() == "0 messages discarded"


@pytest.mark.parametrize("verb", ["replay", "discard"])
class TestBoth:
    @pytest.fixture
    def asked(self, made: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
        monkeypatch.setattr(output, "has_terminal", lambda: True)
        return made

    def test_without_a_terminal_nothing_is_changed_unless_told_so(self, made: Shop, verb: str) -> None:
        made.give_up("tea")
        result = made("dead-letters", verb, "--all")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--yes" in result.stderr
        assert made.count("dead-letters") == 1

    def test_it_is_shown_and_asked_first_and_no_means_no(self, asked: Shop, verb: str) -> None:
        (tea, _) = asked.give_up("tea", "honey")
        result = asked("dead-letters", verb, tea, answer="n\n")
        assert result.exit_code == 1
        assert f"{verb.capitalize()} 1 message?" in result.stderr
        assert "mailroom.errors.Reject" in result.stderr
        assert asked.count("dead-letters") == 2

    def test_yes_means_yes(self, asked: Shop, verb: str) -> None:
        asked.give_up("tea", "honey")
        result = asked("dead-letters", verb, "--all", answer="y\n")
        assert result.exit_code == 0
        assert f"{verb.capitalize()} 2 messages?" in result.stderr
        assert asked.count("dead-letters") == 0

    def test_ctrl_c_ends_it_between_two_batches_and_the_others_stay(
        self, made: Shop, verb: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made.give_up("tea", "honey", "jam")
        monkeypatch.setattr(dead_letters, "BATCH_SIZE", 1)
        move = dead_letters.RabbitMQDeadLetters._move

        async def press(*arguments: Any) -> None:
            signal.raise_signal(signal.SIGINT)
            await move(*arguments)

        monkeypatch.setattr(dead_letters.RabbitMQDeadLetters, "_move", press)
        result = made("dead-letters", verb, "--all", "--yes")
        assert result.exit_code == 130
        assert result.stdout.startswith("interrupted: 1 message ")
        assert made.count("dead-letters") == 2

    @pytest.mark.parametrize("arguments", [(), ("--all", "an-id"), ("an-id", "--limit", "1")])
    def test_it_must_be_said_which_ones(self, shop: Shop, verb: str, arguments: tuple[str, ...]) -> None:
        assert shop("dead-letters", verb, *arguments).exit_code == 2


class TestNoBroker:
    def test_in_process_it_is_said_where_dead_letters_are_then(self, shop: Shop) -> None:
        shop.sections["message_bus"] = {}
        for command in (("list",), ("show", "x"), ("replay", "--all", "--yes"), ("discard", "--all", "--yes")):
            result = shop("dead-letters", *command)
            assert (result.exit_code, result.stdout) == (2, "")
            (line,) = result.stderr.splitlines()
            assert "there is no broker" in line
            assert "shop outbox list --state dead-lettered" in line

    @pytest.mark.parametrize("url", ["amqp://anna:sesame@127.0.0.1:1/", "amqp://anna:sesame@127.0.0.1:5672/"])
    def test_a_broker_that_is_away_or_refuses_is_told_without_the_password(self, shop: Shop, url: str) -> None:
        if url.endswith(":5672/"):
            url = shop.url.replace("guest:guest", "anna:sesame")
        shop.sections["rabbitmq"]["url"] = url
        result: Result = shop("dead-letters", "list")
        assert result.exit_code == 1
        assert "sesame" not in result.output
        assert "Traceback" not in result.output

    def test_the_error_of_a_queue_that_is_missing_has_its_remedy_apart(self, shop: Shop) -> None:
        async def count(transport: RabbitMQTransport) -> int:
            return await transport.dead_letters.count()

        with pytest.raises(MailroomError) as raised:
            shop.on_transport(count)
        assert raised.value.remedy is not None
