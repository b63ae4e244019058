"""Contract A1, F13: what operators do about the topology of a broker, and what `doctor` says about the broker."""

import json
from typing import Any

import pytest
from aiormq import Channel, spec
from broker_shop import Placed, not_ok
from rabbitmq_broker import Shop
from rabbitmq_management import Api

from mailroom import Handlers
from mailroom.checks import Status
from mailroom.cli import output
from mailroom.errors import ConfigurationError
from mailroom.messaging.transports.rabbitmq import RabbitMQTransport


def is_routed(shop: Shop, event: str) -> bool:
    return shop.publish(b"{}", event, spec.Basic.Properties(), exchange=shop.name)


def bind(shop: Shop, event: str) -> None:
    async def work(channel: Channel) -> None:
        await channel.queue_bind(f"{shop.name}.events", shop.name, event)

    shop.on_channel(work)


@pytest.fixture
def made(shop: Shop) -> Shop:
    """The topology is on the broker."""
    assert shop("topology", "apply").exit_code == 0
    return shop


@pytest.fixture
def managed(made: Shop, api: Api) -> Shop:
    """Its management API says what the service has bound, and one event more that is bound too."""
    made.sections["rabbitmq"]["management_url"] = api.url
    bind(made, "shop.order-lost")
    api.bind(made.name, f"{made.name}.events", Placed.event_name, "shop.order-lost")
    return made


class TestShow:
    def test_it_says_what_is_wanted_with_arguments_and_that_it_is_missing(self, shop: Shop) -> None:
        result = shop("topology", "show")
        assert result.exit_code == 0
        for fact in (f"{shop.name}.redelivery.60s", "x-queue-type = quorum", "at-least-once", Placed.event_name):
            assert fact in result.stdout
        assert "shop topology apply" in result.stdout
        assert {name: state for name, state in shop.states().items() if name.startswith(shop.name)} == dict.fromkeys(
            (shop.name, *shop.topology.queues), "missing"
        )

    def test_once_it_is_made_it_is_there(self, made: Shop) -> None:
        assert made.states() == dict.fromkeys((made.name, *made.topology.queues), "there") | {
            Placed.event_name: "not checked"
        }

    def test_without_the_management_api_it_is_said_which_setting_tells_more(self, made: Shop) -> None:
        assert "rabbitmq.management_url" in made("topology", "show").stdout
        (note,) = made.json("topology", "show")["notes"]
        assert "rabbitmq.management_url" in note

    def test_with_it_bindings_are_there_missing_or_unwanted(self, managed: Shop, api: Api) -> None:
        found = managed.states()
        assert (found[Placed.event_name], found["shop.order-lost"]) == ("there", "unwanted")
        assert "shop topology prune" in managed("topology", "show").stdout
        api.forget()
        assert managed.states()[Placed.event_name] == "missing"

    def test_a_queue_with_other_arguments_is_told_with_the_argument(self, made: Shop) -> None:
        made.sections["rabbitmq"]["delivery_limit"] = 25
        assert made.states()[f"{made.name}.events"] == "different"
        assert "its x-delivery-limit is 20, where 25 is asked for, by rabbitmq.delivery_limit" in (
            made("topology", "show").stdout
        )

    def test_without_a_broker_it_still_says_what_is_wanted(self, shop: Shop) -> None:
        shop.sections["rabbitmq"]["url"] = "amqp://anna:sesame@127.0.0.1:1/"
        result = shop("topology", "show", "--json")
        assert result.exit_code == 1
        assert "sesame" not in result.output
        assert {part["state"] for part in json.loads(result.stdout)["parts"]} == {"not checked"}

    def test_a_service_that_handles_nothing_wants_an_exchange_and_no_queue(self, shop: Shop) -> None:
        shop.handlers = []
        assert shop.states() == {shop.name: "missing"}


class TestApply:
    def test_it_makes_what_is_missing_so_that_events_arrive(self, shop: Shop) -> None:
        result = shop("topology", "apply")
        assert result.exit_code == 0
        assert f"queue {shop.name}.dead-letters" in result.stdout
        assert is_routed(shop, Placed.event_name)
        assert shop.count("events") == 1

    def test_it_is_the_operator_s_tool_also_where_the_service_makes_nothing(self, shop: Shop) -> None:
        shop.sections["rabbitmq"]["declare_topology"] = False
        assert shop("topology", "apply").exit_code == 0
        assert is_routed(shop, Placed.event_name)

    def test_a_second_time_there_is_nothing_to_make(self, made: Shop, api: Api) -> None:
        assert made.json("topology", "apply")["made"] == []
        made.sections["rabbitmq"]["management_url"] = api.url
        api.bind(made.name, f"{made.name}.events", Placed.event_name)
        assert made("topology", "apply").stdout.strip() == "nothing was missing"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"x-queue-type": "quorum"}, "its x-dead-letter-exchange is none"),
            ({}, "its x-dead-letter-exchange is none"),
        ],
    )
    def test_a_queue_with_other_arguments_is_one_clear_error_and_nothing_is_changed(
        self, shop: Shop, arguments: dict[str, Any], said: str
    ) -> None:
        async def declare(channel: Channel) -> None:
            await channel.queue_declare(f"{shop.name}.events", durable=True, arguments=arguments)

        shop.on_channel(declare)
        shop.give_up("tea", into="events")
        result = shop("topology", "apply")
        assert result.exit_code == 2
        assert f"the queue {shop.name}.events is on the broker already, and {said}" in result.stderr
        assert shop.count("events") == 1

    def test_another_kind_of_exchange_is_one_clear_error(self, shop: Shop) -> None:
        async def declare(channel: Channel) -> None:
            await channel.exchange_declare(shop.name, exchange_type="fanout", durable=True)

        shop.on_channel(declare)
        result = shop("topology", "apply")
        assert result.exit_code == 2
        assert f"the exchange {shop.name} is on the broker already, and its type is fanout" in result.stderr

    def test_the_service_does_not_start_on_it_either(self, made: Shop) -> None:
        made.sections["rabbitmq"]["delivery_limit"] = 25

        async def start(transport: RabbitMQTransport) -> None:
            await transport.receiver.start()

        with pytest.raises(ConfigurationError, match=r"x-delivery-limit is 20.*rabbitmq\.delivery_limit"):
            made.on_transport(start)


class TestPrune:
    def test_what_no_handler_wants_is_bound_no_more_and_the_rest_still_is(self, managed: Shop) -> None:
        assert is_routed(managed, "shop.order-lost")
        result = managed("topology", "prune", "--yes")
        assert (result.exit_code, result.stdout.strip()) == (0, "1 binding removed")
        assert not is_routed(managed, "shop.order-lost")
        assert is_routed(managed, Placed.event_name)
        assert managed.count("events") == 2

    def test_nothing_to_remove_is_well(self, managed: Shop, api: Api) -> None:
        api.forget()
        assert managed.json("topology", "prune") == {"removed": []}

    def test_a_service_that_handles_nothing_any_more_wants_nothing(self, managed: Shop) -> None:
        managed.handlers = [Handlers()]
        assert [one["name"] for one in managed.json("topology", "prune", "--yes")["removed"]] == [
            Placed.event_name,
            "shop.order-lost",
        ]
        assert not is_routed(managed, Placed.event_name)

    def test_it_is_shown_and_asked_first(self, managed: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        result = managed("topology", "prune")
        assert (result.exit_code, result.stdout) == (2, "")
        monkeypatch.setattr(output, "has_terminal", lambda: True)
        result = managed("topology", "prune", answer="n\n")
        assert result.exit_code == 1
        assert "shop.order-lost" in result.stderr
        assert is_routed(managed, "shop.order-lost")

    def test_without_the_management_api_it_is_refused_with_the_setting(self, made: Shop) -> None:
        result = made("topology", "prune", "--yes")
        assert result.exit_code == 2
        assert "rabbitmq.management_url" in result.stderr


class TestExport:
    def test_what_it_describes_is_what_apply_makes(self, made: Shop) -> None:
        """The broker takes a declaration of what is there only if it is the same."""
        document = json.loads(made("topology", "export").stdout)
        (exchange,), (binding,) = document["exchanges"], document["bindings"]
        assert [queue["name"] for queue in document["queues"]] == list(made.topology.queues)

        async def declare(channel: Channel) -> None:
            await channel.exchange_declare(
                exchange["name"],
                exchange_type=exchange["type"],
                durable=exchange["durable"],
                internal=exchange["internal"],
            )
            for queue in document["queues"]:
                await channel.queue_declare(queue["name"], durable=queue["durable"], arguments=queue["arguments"])

        made.on_channel(declare)
        assert (binding["source"], binding["destination"]) == (made.name, f"{made.name}.events")
        assert binding["routing_key"] == Placed.event_name
        assert {one["vhost"] for kind in document.values() for one in kind} == {made.settings().rabbitmq.virtual_host}

    def test_it_asks_no_broker(self, shop: Shop) -> None:
        before = shop("topology", "export").stdout
        shop.sections["rabbitmq"]["url"] = "amqp://anna:sesame@127.0.0.1:1/"
        result = shop("topology", "export")
        assert (result.exit_code, result.stdout, result.stderr) == (0, before, "")

    def test_a_service_that_handles_nothing_has_an_exchange_alone(self, shop: Shop) -> None:
        shop.handlers = []
        document = json.loads(shop("topology", "export").stdout)
        assert [one["name"] for one in document["exchanges"]] == [shop.name]
        assert (document["queues"], document["bindings"]) == ([], [])


def test_in_process_there_is_nothing_to_make(shop: Shop) -> None:
    shop.sections["message_bus"] = {}
    for command in ("show", "apply", "export", "prune"):
        result = shop("topology", command)
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        assert "there is no broker" in line


class TestDoctor:
    def test_a_broker_on_which_all_is_made_has_nothing_to_do(self, made: Shop) -> None:
        checks = made.examined()
        assert not_ok(checks) == {}
        assert list(checks) == ["broker", "topology", "bindings", "broker dead letters"]
        assert "RabbitMQ" in checks["broker"].found
        assert "rabbitmq.management_url" in checks["bindings"].found

    def test_what_is_missing_is_told_with_the_command(self, shop: Shop) -> None:
        checks = shop.examined()
        assert not_ok(checks) == {"topology": Status.TO_DO}
        assert f"queue {shop.name}.events" in checks["topology"].found
        assert "shop topology apply" in str(checks["topology"].remedy)

    def test_other_arguments_keep_the_service_from_starting(self, made: Shop) -> None:
        made.sections["rabbitmq"]["delivery_limit"] = 25
        checks = made.examined()
        assert not_ok(checks) == {"topology": Status.WRONG}
        assert "x-delivery-limit" in checks["topology"].found

    def test_where_an_operator_owns_them_other_arguments_are_his_own(self, made: Shop) -> None:
        made.sections["rabbitmq"] |= {"delivery_limit": 25, "declare_topology": False}
        assert not_ok(made.examined()) == {}

    def test_bindings_that_no_handler_wants_are_to_be_pruned(self, managed: Shop) -> None:
        checks = managed.examined()
        assert not_ok(checks) == {"bindings": Status.TO_DO}
        assert "shop.order-lost" in checks["bindings"].found
        assert "shop topology prune" in str(checks["bindings"].remedy)

    def test_a_management_api_that_was_asked_for_has_to_answer(self, made: Shop) -> None:
        made.sections["rabbitmq"]["management_url"] = "http://anna:sesame@127.0.0.1:1"
        checks = made.examined()
        assert not_ok(checks) == {"bindings": Status.TO_DO}
        assert "sesame" not in str(checks)

    def test_dead_letters_want_to_be_looked_at(self, made: Shop) -> None:
        made.give_up("tea", "honey")
        checks = made.examined()
        assert not_ok(checks) == {"broker dead letters": Status.TO_DO}
        assert checks["broker dead letters"].found == f"2 in {made.name}.dead-letters"
        assert "shop dead-letters list" in str(checks["broker dead letters"].remedy)

    def test_a_broker_that_is_away_ends_the_examination(self, shop: Shop) -> None:
        shop.sections["rabbitmq"]["url"] = "amqp://anna:sesame@127.0.0.1:1/"
        (check,) = shop.examined().values()
        assert (check.name, check.status) == ("broker", Status.TO_DO)
        assert "cannot be reached" in check.found
        assert "sesame" not in str(check)

    def test_a_login_that_is_refused_is_told_apart(self, shop: Shop) -> None:
        shop.sections["rabbitmq"]["url"] = shop.url.replace("guest:guest", "anna:sesame")
        (check,) = shop.examined().values()
        assert "refuses the login" in check.found
        assert "sesame" not in str(check)

    def test_a_service_that_handles_nothing_consumes_nothing(self, shop: Shop) -> None:
        shop.handlers = []
        assert shop("topology", "apply").exit_code == 0
        checks = shop.examined()
        assert not_ok(checks) == {}
        assert "nothing is consumed" in checks["topology"].found

    def test_the_command_shows_it_beside_the_rest(self, shop: Shop) -> None:
        result = shop("doctor", "--json")
        assert result.exit_code == 1
        names = [check["name"] for check in json.loads(result.stdout)["checks"]]
        assert names[-4:] == ["service", "broker", "topology", "bindings"]
