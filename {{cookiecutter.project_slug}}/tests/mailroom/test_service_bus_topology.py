"""Contract A1, F13: what operators do about the topology of a namespace, and what `doctor` says about it."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from broker_shop import Placed, not_ok
from service_bus_shop import KEPT_ALIVE, Shop, fresh_shop, keep_nothing_alive, management_that_refuses

from mailroom import Context, Handlers, IntegrationEvent
from mailroom.checks import Status
from mailroom.cli import output
from mailroom.errors import ConfigurationError
from mailroom.messaging.transports.azure_service_bus import ServiceBusTransport

pytestmark = [
    # The client does not close the socket of a connection that fails.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

EVENT = Placed.event_name
SESAME = "SharedAccessKeyName=anna;SharedAccessKey=sesame"
NOWHERE = {
    "connection_string": f"Endpoint=sb://127.0.0.1:1;{SESAME};UseDevelopmentEmulator=true",
    "management_url": "http://127.0.0.1:1",
}


@pytest.fixture(autouse=True)
def closing_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KEPT_ALIVE, keep_nothing_alive, raising=False)


@pytest.fixture
def shop() -> Iterator[Shop]:
    with fresh_shop() as shop:
        yield shop


@pytest.fixture
def made(shop: Shop) -> Shop:
    """The topology is in the namespace."""
    assert shop("topology", "apply").exit_code == 0
    return shop


@pytest.fixture
def other(made: Shop) -> Iterator[Shop]:
    """Another service on the same topic, whose topology is there as well."""
    with fresh_shop(topic=made.bus.topic) as other:
        assert other("topology", "apply").exit_code == 0
        yield other


@pytest.fixture
def unmanaged(made: Shop) -> Iterator[Shop]:
    """The topology is there, and the service may not manage it."""
    with management_that_refuses() as url:
        made.sections["service_bus"]["management_url"] = url
        yield made


def handling(*names: str) -> Handlers:
    """Handlers of events of these names."""
    handlers = Handlers()
    for number, name in enumerate(names):
        event = type(f"Event{number}", (IntegrationEvent,), {"__module__": __name__}, name=name)

        async def handle(event: Any, context: Context[Any]) -> None: ...

        handle.__annotations__["event"] = event
        handlers.on(event)(handle)
    return handlers


class TestShow:
    def test_it_says_what_is_wanted_and_that_it_is_missing(self, shop: Shop) -> None:
        result = shop("topology", "show")
        assert result.exit_code == 0
        for fact in (shop.bus.topic, "lock_duration = 60 s", f"forward_to = {shop.bus.queue}", f"label = {EVENT}"):
            assert fact in result.stdout
        assert "shop topology apply" in result.stdout
        assert shop.states() == dict.fromkeys((shop.bus.topic, shop.bus.queue, shop.name, EVENT), "missing")

    def test_once_it_is_made_it_is_there(self, made: Shop) -> None:
        assert made.states() == dict.fromkeys((made.bus.topic, made.bus.queue, made.name, EVENT), "there")
        assert "topology apply" not in made("topology", "show").stdout

    def test_a_rule_that_no_handler_wants_is_told_with_the_command(self, made: Shop) -> None:
        made.add_rule("order-lost", "shop.order-lost")
        assert made.states()["order-lost"] == "unwanted"
        assert "shop topology prune" in made("topology", "show").stdout

    def test_a_service_that_handles_nothing_wants_a_topic_and_no_queue(self, shop: Shop) -> None:
        shop.handlers = []
        assert shop.states() == {shop.bus.topic: "missing"}
        assert shop("topology", "apply").exit_code == 0
        assert shop.states() == {shop.bus.topic: "there"}

    def test_without_the_right_to_manage_it_says_whether_the_queue_is_there(self, unmanaged: Shop) -> None:
        shown = unmanaged.json("topology", "show")
        assert {part["kind"]: part["state"] for part in shown["parts"]} == {
            "topic": "not checked",
            "queue": "there",
            "subscription": "not checked",
            "rule": "not checked",
        }
        (note,) = shown["notes"]
        assert "does not let this identity manage" in note


class TestApply:
    def test_it_makes_what_is_missing_so_that_events_arrive_and_no_others(self, shop: Shop) -> None:
        result = shop("topology", "apply")
        assert result.exit_code == 0
        assert f"queue {shop.bus.queue}" in result.stdout
        assert shop.rules() == {EVENT: EVENT}
        shop.announce("shop.order-lost", EVENT)
        shop.wait_for(1)
        assert shop.counts() == (1, 0)

    def test_it_is_the_operator_s_tool_also_where_the_service_makes_nothing(self, shop: Shop) -> None:
        shop.sections["service_bus"]["declare_topology"] = False
        assert shop("topology", "apply").exit_code == 0
        assert set(shop.states().values()) == {"there"}

    def test_a_second_time_there_is_nothing_to_make(self, made: Shop) -> None:
        assert made.json("topology", "apply") == {"made": [], "ensured": []}
        assert made("topology", "apply").stdout.strip() == "nothing was missing"

    def test_what_an_apply_that_was_interrupted_left_is_finished(self, shop: Shop) -> None:
        """Else the rule that every subscription begins with would let in everything."""

        async def begin(administration: ServiceBusAdministrationClient) -> None:
            await administration.create_topic(shop.bus.topic)
            await shop.topology.declare_queue(administration)
            await administration.create_subscription(shop.bus.topic, shop.name, forward_to=shop.bus.queue)

        shop.on_administration(begin)
        assert (shop.states()[EVENT], shop.states()["$Default"]) == ("missing", "unwanted")
        assert shop("topology", "apply").exit_code == 0
        assert shop.rules() == {EVENT: EVENT}

    def test_without_the_right_to_manage_it_prints_what_an_operator_needs_and_fails(self, unmanaged: Shop) -> None:
        result = unmanaged("topology", "apply")
        assert result.exit_code == 1
        assert result.stdout == unmanaged("topology", "export").stdout
        (line,) = result.stderr.splitlines()
        assert "does not let this identity manage" in line
        assert "service_bus.declare_topology = false" in line

    def test_a_rule_for_a_long_name_has_its_end_for_a_name_and_lets_the_event_in(self, shop: Shop) -> None:
        long, longer = (f"{'shop.' * 9}-{'x' * length}.placed" for length in (30, 45))
        shop.handlers = [handling(long, longer)]
        assert shop("topology", "apply").exit_code == 0
        assert sorted(shop.rules().values(), key=str) == sorted((long, longer))
        assert all(len(name) <= 50 and name.endswith("x.placed") for name in shop.rules())
        shop.announce(long, longer)
        shop.wait_for(2)
        assert set(shop.states().values()) == {"there"}

    @pytest.mark.parametrize(
        "names", [("a." + "x" * 50, "b." + "x" * 50), ("shop.placed", "shop.Placed")], ids=["long", "by case"]
    )
    def test_two_names_that_would_have_one_rule_are_one_clear_error(self, shop: Shop, names: tuple[str, str]) -> None:
        shop.handlers = [handling(*names)]
        result = shop("topology", "apply")
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert all(name in line for name in names)
        assert "give one of them" in line

    def test_the_topic_cannot_be_called_as_the_queue_is(self, shop: Shop) -> None:
        """Both are paths of one namespace."""
        shop.sections["service_bus"]["topic"] = shop.bus.queue.upper()
        result = shop("topology", "apply")
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert "service_bus.topic" in line


class TestDifferent:
    @pytest.mark.parametrize(
        ("properties", "said"),
        [
            ({"requires_duplicate_detection": True}, "its requires_duplicate_detection is True"),
            ({"requires_session": True}, "its requires_session is True"),
            (
                {"lock_duration": timedelta(seconds=30)},
                "its lock_duration is 30 s, where 60 s is asked for, by service_bus.lock_seconds",
            ),
            (
                {"max_delivery_count": 7},
                "its max_delivery_count is 7, where 10 is asked for, by service_bus.delivery_limit",
            ),
        ],
        ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
    )
    def test_a_queue_with_other_properties_is_one_clear_error_and_stays_as_it_is(
        self, shop: Shop, properties: dict[str, Any], said: str
    ) -> None:
        async def create(administration: ServiceBusAdministrationClient) -> None:
            wanted = {**shop.topology.queue_properties, **properties}
            await administration.create_queue(shop.bus.queue, **wanted)

        async def look(administration: ServiceBusAdministrationClient) -> dict[str, Any]:
            found = await administration.get_queue(shop.bus.queue)
            return {name: getattr(found, name) for name in properties}

        shop.on_administration(create)
        assert shop.states()[shop.bus.queue] == "different"
        assert f"the queue {shop.bus.queue}: {said}" in shop("topology", "show").stdout
        result = shop("topology", "apply")
        assert result.exit_code == 2
        (line,) = result.stderr.splitlines()
        assert f"the queue {shop.bus.queue} is in the namespace already, and {said}" in line
        assert shop.on_administration(look) == properties

    def test_a_topic_where_the_queue_should_be_and_the_reverse_are_one_clear_error(self, shop: Shop) -> None:
        async def create(administration: ServiceBusAdministrationClient) -> None:
            await administration.create_queue(shop.bus.topic)
            await administration.create_topic(shop.bus.queue)

        async def delete_one(administration: ServiceBusAdministrationClient) -> None:
            await administration.delete_queue(shop.bus.topic)

        shop.on_administration(create)
        assert shop.states() == {
            shop.bus.topic: "different",
            shop.bus.queue: "different",
            shop.name: "missing",
            EVENT: "missing",
        }
        result = shop("topology", "apply")
        assert result.exit_code == 2
        assert f"the topic {shop.bus.topic} is in the namespace already, and it is no topic" in result.stderr
        shop.on_administration(delete_one)
        result = shop("topology", "apply")
        assert result.exit_code == 2
        assert f"the queue {shop.bus.queue} is in the namespace already, and it is no queue" in result.stderr

    def test_that_it_detects_duplicates_is_told_with_the_consequence(self, shop: Shop) -> None:
        async def create(administration: ServiceBusAdministrationClient) -> None:
            await administration.create_queue(shop.bus.queue, requires_duplicate_detection=True)

        shop.on_administration(create)
        assert "it would swallow redeliveries" in shop("topology", "apply").stderr

    def test_a_subscription_that_forwards_elsewhere_is_one_clear_error(self, made: Shop, other: Shop) -> None:
        async def forward(administration: ServiceBusAdministrationClient) -> None:
            subscription = await administration.get_subscription(made.bus.topic, made.name)
            subscription.forward_to = other.bus.queue
            await administration.update_subscription(made.bus.topic, subscription)

        made.on_administration(forward)
        said = f"it forwards to {other.bus.queue}, where {made.bus.queue} is asked for"
        assert made.states()[made.name] == "different"
        assert f"the subscription {made.name}: {said}" in made("topology", "show").stdout
        result = made("topology", "apply")
        assert result.exit_code == 2
        assert f"the subscription {made.name} is in the namespace already, and {said}" in result.stderr

    @pytest.mark.parametrize("name", [EVENT, EVENT.upper()])
    def test_a_rule_of_the_same_name_that_takes_something_else_is_one_clear_error(self, made: Shop, name: str) -> None:
        """The service does not tell names apart by case."""

        async def delete(administration: ServiceBusAdministrationClient) -> None:
            await administration.delete_rule(made.bus.topic, made.name, EVENT)

        made.on_administration(delete)
        made.add_rule(name, "shop.order-lost")
        shown = made.json("topology", "show")["parts"]
        assert [(part["state"], part["problem"]) for part in shown if part["name"] == EVENT][:1] == [
            ("different", f"the rule {EVENT} takes shop.order-lost instead")
        ]
        result = made("topology", "apply")
        assert result.exit_code == 2
        assert f"the rule {EVENT} is in the namespace already, and it takes shop.order-lost" in result.stderr
        assert made.rules() == {name: "shop.order-lost"}

    def test_a_rule_of_another_name_that_takes_the_event_is_as_good(self, made: Shop) -> None:
        async def change(administration: ServiceBusAdministrationClient) -> None:
            await administration.delete_rule(made.bus.topic, made.name, EVENT)

        made.add_rule("by-hand", EVENT)
        made.on_administration(change)
        assert made.states()[EVENT] == "there"
        assert made("topology", "apply").stdout.strip() == "nothing was missing"
        assert made.rules() == {"by-hand": EVENT}

    def test_the_service_does_not_start_on_it_either(self, made: Shop) -> None:
        made.sections["service_bus"]["lock_seconds"] = 30

        async def start(transport: ServiceBusTransport) -> None:
            await transport.connect()

        with pytest.raises(ConfigurationError, match=r"lock_duration is 60 s.*service_bus\.lock_seconds"):
            made.on_transport(start)


class TestPrune:
    def test_what_no_handler_wants_is_let_in_no_more_and_others_keep_theirs(self, made: Shop, other: Shop) -> None:
        for one in (made, other):
            one.add_rule("order-lost", "shop.order-lost")
        result = made("topology", "prune", "--yes")
        assert (result.exit_code, result.stdout.strip()) == (0, "1 binding removed")
        assert made.rules() == {EVENT: EVENT}
        assert other.rules() == {EVENT: EVENT, "order-lost": "shop.order-lost"}
        made.announce("shop.order-lost", EVENT)
        other.wait_for(2)
        made.wait_for(1)
        assert (made.counts(), other.counts()) == ((1, 0), (2, 0))

    def test_nothing_to_remove_is_well(self, made: Shop) -> None:
        assert made.json("topology", "prune") == {"removed": []}

    def test_a_service_that_handles_nothing_any_more_wants_nothing(self, made: Shop) -> None:
        made.handlers = [Handlers()]
        assert [one["name"] for one in made.json("topology", "prune", "--yes")["removed"]] == [EVENT]
        assert made.rules() == {}

    def test_it_is_shown_and_asked_first(self, made: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        made.add_rule("order-lost", "shop.order-lost")
        result = made("topology", "prune")
        assert (result.exit_code, result.stdout) == (2, "")
        monkeypatch.setattr(output, "has_terminal", lambda: True)
        result = made("topology", "prune", answer="n\n")
        assert result.exit_code == 1
        assert "order-lost" in result.stderr
        assert set(made.rules()) == {EVENT, "order-lost"}

    def test_without_the_right_to_manage_it_is_refused(self, unmanaged: Shop) -> None:
        result = unmanaged("topology", "prune", "--yes")
        assert result.exit_code == 2
        assert "does not let this identity manage" in result.stderr


class TestExport:
    def test_it_is_what_apply_makes(self, shop: Shop) -> None:
        shop.handlers = [handling("shop.order-placed", f"{'shop.' * 9}-order-lost")]
        shop.sections["service_bus"]["lock_seconds"] = 90
        (namespace,) = json.loads(shop("topology", "export").stdout)["UserConfig"]["Namespaces"]
        assert shop("topology", "apply").exit_code == 0

        async def look(administration: ServiceBusAdministrationClient) -> dict[str, Any]:
            topic, name = shop.bus.topic, shop.name
            queue = await administration.get_queue(shop.bus.queue)
            subscription = await administration.get_subscription(topic, name)
            return {
                "topic": (await administration.get_topic(topic)).name,
                "queue": queue.name,
                "lock": queue.lock_duration,
                "deliveries": queue.max_delivery_count,
                "duplicates": queue.requires_duplicate_detection,
                "sessions": queue.requires_session,
                "subscription": subscription.name,
                "forward": (subscription.forward_to or "").rpartition("/")[2],
                "rules": {rule.name: rule.filter.label async for rule in administration.list_rules(topic, name)},
            }

        (queue,), (topic,) = namespace["Queues"], namespace["Topics"]
        (subscription,) = topic["Subscriptions"]
        properties = queue["Properties"]
        assert properties["LockDuration"] == "PT1M30S"
        assert shop.on_administration(look) == {
            "topic": topic["Name"],
            "queue": queue["Name"],
            "lock": timedelta(minutes=1, seconds=30),
            "deliveries": properties["MaxDeliveryCount"],
            "duplicates": properties["RequiresDuplicateDetection"],
            "sessions": properties["RequiresSession"],
            "subscription": subscription["Name"],
            "forward": subscription["Properties"]["ForwardTo"],
            "rules": {rule["Name"]: rule["Properties"]["CorrelationFilter"]["Label"] for rule in subscription["Rules"]},
        }

    def test_it_asks_nobody(self, shop: Shop) -> None:
        before = shop("topology", "export")
        shop.sections["service_bus"] |= NOWHERE
        result = shop("topology", "export")
        assert (result.exit_code, result.stdout, result.stderr) == (0, before.stdout, "")

    @pytest.mark.parametrize(("seconds", "said"), [(5, "PT5S"), (60, "PT1M"), (300, "PT5M")])
    def test_a_lock_is_written_as_a_duration(self, shop: Shop, seconds: int, said: str) -> None:
        shop.sections["service_bus"]["lock_seconds"] = seconds
        assert f'"LockDuration": "{said}"' in shop("topology", "export").stdout

    def test_a_service_that_handles_nothing_has_a_topic_and_neither_queue_nor_subscription(self, shop: Shop) -> None:
        """A subscription without rules would let in everything."""
        shop.handlers = []
        (namespace,) = json.loads(shop("topology", "export").stdout)["UserConfig"]["Namespaces"]
        assert namespace["Queues"] == []
        assert [(topic["Name"], topic["Subscriptions"]) for topic in namespace["Topics"]] == [(shop.bus.topic, [])]


class TestSettings:
    @pytest.mark.parametrize(
        ("sections", "said"),
        [
            ({"service_bus": {}}, "needs service_bus.connection_string, or service_bus.namespace"),
            ({"message_bus": {"provider": "azure_service_bus"}}, "needs message_bus.endpoint_prefix"),
            (
                {"message_bus": {"provider": "azure_service_bus"}, "service_bus": {}},
                "; and message_bus.endpoint_prefix",
            ),
            (
                {"service_bus": {**NOWHERE, "namespace": "shop.servicebus.windows.net"}},
                "service_bus.connection_string and service_bus.namespace are both set",
            ),
        ],
    )
    def test_what_lacks_or_clashes_is_one_clear_error(self, shop: Shop, sections: dict[str, Any], said: str) -> None:
        shop.sections |= sections
        for command in (("topology", "show"), ("dead-letters", "list")):
            result = shop(*command)
            assert (result.exit_code, result.stdout) == (2, "")
            (line,) = result.stderr.splitlines()
            assert said in line
            assert "sesame" not in line


COMMANDS = (("topology", "show"), ("topology", "apply"), ("topology", "prune", "--yes"), ("dead-letters", "list"))


class TestNoNamespace:
    @pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
    def test_one_that_is_away_is_told_in_one_line_without_the_key(self, shop: Shop, command: tuple[str, ...]) -> None:
        shop.sections["service_bus"] |= NOWHERE
        result = shop(*command)
        assert result.exit_code == 1
        (line,) = result.stderr.splitlines()
        assert "127.0.0.1:1 cannot be reached" in line
        assert "sesame" not in result.output

    def test_what_is_wanted_is_shown_all_the_same(self, shop: Shop) -> None:
        shop.sections["service_bus"] |= NOWHERE
        result = shop("topology", "show", "--json")
        assert {part["state"] for part in json.loads(result.stdout)["parts"]} == {"not checked"}

    def test_a_key_that_is_refused_is_told_apart_and_not_shown(self, shop: Shop) -> None:
        right = shop.sections["service_bus"]["connection_string"]
        wrong = ";".join(
            f"{part[:16]}sesame" if part.startswith("SharedAccessKey=") else part for part in right.split(";")
        )
        shop.sections["service_bus"]["connection_string"] = wrong
        result = shop("topology", "show")
        assert result.exit_code == 1
        assert "refuses the login" in result.stderr
        applied = shop("topology", "apply")
        assert applied.exit_code == 1
        (check,) = shop.examined().values()
        assert (check.name, check.status) == ("broker", Status.TO_DO)
        assert "refuses the login" in check.found
        assert "sesame" not in result.output + applied.output + str(check)


class TestDoctor:
    def test_a_namespace_in_which_all_is_made_has_nothing_to_do(self, made: Shop) -> None:
        checks = made.examined()
        assert not_ok(checks) == {}
        assert list(checks) == ["broker", "topology", "rules", "broker dead letters"]
        assert made.bus.queue in checks["topology"].found

    def test_what_is_missing_is_told_with_the_command(self, shop: Shop) -> None:
        checks = shop.examined()
        assert not_ok(checks) == {"topology": Status.TO_DO}
        assert f"queue {shop.bus.queue}" in checks["topology"].found
        assert "shop topology apply" in str(checks["topology"].remedy)

    def test_other_properties_keep_the_service_from_starting_unless_an_operator_owns_them(self, made: Shop) -> None:
        made.add_rule("order-lost", "shop.order-lost")
        made.sections["service_bus"]["lock_seconds"] = 30
        checks = made.examined()
        assert not_ok(checks) == {"topology": Status.WRONG, "rules": Status.TO_DO}
        assert "service_bus.lock_seconds" in checks["topology"].found
        assert "order-lost" in checks["rules"].found
        assert "shop topology prune" in str(checks["rules"].remedy)
        made.sections["service_bus"]["declare_topology"] = False
        assert not_ok(made.examined()) == {"rules": Status.TO_DO}

    def test_without_the_right_to_manage_somebody_has_to_act_unless_an_operator_owns_it(self, unmanaged: Shop) -> None:
        checks = unmanaged.examined()
        assert not_ok(checks) == {"rules": Status.TO_DO}
        assert "does not let this identity manage" in checks["rules"].found
        unmanaged.sections["service_bus"]["declare_topology"] = False
        assert not_ok(unmanaged.examined()) == {}

    def test_without_the_right_to_manage_a_queue_that_is_missing_is_told(self, shop: Shop) -> None:
        with management_that_refuses() as url:
            shop.sections["service_bus"]["management_url"] = url
            checks = shop.examined()
        assert checks["topology"].status is Status.TO_DO
        assert checks["topology"].found == f"missing: queue {shop.bus.queue}"

    def test_a_namespace_that_is_away_ends_the_examination(self, shop: Shop) -> None:
        shop.sections["service_bus"] |= NOWHERE
        (check,) = shop.examined().values()
        assert (check.name, check.status) == ("broker", Status.TO_DO)
        assert "127.0.0.1:1 cannot be reached" in check.found
        assert "sesame" not in str(check)

    def test_the_command_shows_it_beside_the_rest(self, shop: Shop) -> None:
        result = shop("doctor", "--json")
        assert result.exit_code == 1
        names = [check["name"] for check in json.loads(result.stdout)["checks"]]
        assert names[-4:] == ["service", "broker", "topology", "rules"]
