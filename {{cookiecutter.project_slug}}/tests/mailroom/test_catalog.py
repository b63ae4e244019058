"""Which events are known, and what old and new code make of each other's messages (O4, R5)."""

import json
import math
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from mailroom.catalog import EventCatalog
from mailroom.envelope import Message
from mailroom.errors import ConfigurationError, UndecodableError, UnknownEventError
from mailroom.events import DomainEvent, Event, IntegrationEvent
from mailroom.serialization import encode


class Anything(IntegrationEvent, name="test.anything"):
    value: Any = None


class Text(IntegrationEvent, name="test.text"):
    text: str = ""


class TestCatalog:
    def test_it_knows_events_by_name_and_alias_and_lists_each_once(self) -> None:
        class Renamed(DomainEvent, name="test.new", aliases=("test.old",)):
            pass

        catalog = EventCatalog([Renamed, Text, Renamed])
        catalog.add(Text)
        assert list(catalog) == [Renamed, Text]
        assert [catalog.knows(name) for name in ("test.new", "test.old", "test.text", "Text")] == [True] * 3 + [False]
        assert (catalog.get("test.old"), catalog.get("nobody")) == (Renamed, None)

    @pytest.mark.parametrize(
        ("name", "aliases"), [("test.text", ()), ("test.other", ("test.text",)), ("test.other", ("a", "test.text"))]
    )
    def test_two_classes_under_one_name_are_refused(self, name: str, aliases: tuple[str, ...]) -> None:
        class Other(DomainEvent, name=name, aliases=aliases):
            pass

        orders: list[list[type[Event]]] = [[Text, Other], [Other, Text]]
        for events in orders:
            with pytest.raises(ConfigurationError, match=r"test_catalog\.(Text|.*Other).*'test\.text'"):
                EventCatalog(events)

    def test_a_refused_event_leaves_nothing_behind(self) -> None:
        class Other(DomainEvent, name="test.other", aliases=("test.text",)):
            pass

        catalog = EventCatalog([Text])
        with pytest.raises(ConfigurationError):
            catalog.add(Other)
        assert not catalog.knows("test.other")

    def test_a_base_cannot_be_known(self) -> None:
        with pytest.raises(ConfigurationError, match="IntegrationEvent has no event name"):
            EventCatalog([IntegrationEvent])

    def test_an_event_whose_types_cannot_be_found_is_refused_at_the_start(self) -> None:
        class Torn(DomainEvent, name="test.torn"):
            part: "Nowhere"  # type: ignore[name-defined]  # noqa: F821

        with pytest.raises(ConfigurationError, match=r"Torn is not fully defined: .*Nowhere"):
            EventCatalog([Torn])


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = 0


@pydantic_dataclass(config=ConfigDict(extra="forbid"))
class StrictPoint:
    x: int


class StrictDict(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    y: int


class Placed(IntegrationEvent, name="test.placed", version=3, aliases=("placed",)):
    sku: str
    quantity: int = Field(gt=0)
    extras: dict[str, Strict | StrictPoint] = Field(default_factory=dict)
    typed: StrictDict | None = None


@Placed.upcast(from_version=1)
def article_became_sku(data: dict[str, Any]) -> dict[str, Any]:
    data["sku"] = data.pop("article")
    return data


@Placed.upcast(from_version=2)
def quantity_was_one(data: dict[str, Any]) -> dict[str, Any]:
    return {"quantity": 1, **data}


class TestReading:
    """Contract R5 and fault F6: what old and new code make of each other's messages."""

    catalog = EventCatalog([Placed, Anything])

    def message(self, payload: str = '{"sku":"tea","quantity":2}', **changes: Any) -> Message:
        return replace(encode(Placed(sku="tea", quantity=2)), payload=payload, **changes)

    def test_identity_and_time_come_from_the_envelope_even_if_the_payload_claims_others(self) -> None:
        message = self.message(
            json.dumps({"sku": "tea", "quantity": 2, "message_id": str(uuid4()), "occurred_on": "yesterday"})
        )
        event = self.catalog.decode(message)
        assert (event.message_id, event.occurred_on) == (message.message_id, message.occurred_on)

    def test_fields_of_a_newer_producer_are_ignored_at_every_depth(self) -> None:
        message = self.message(
            '{"sku":"tea","quantity":2,"new":1,"extras":{"m":{"a":1,"new":2},"d":{"x":1,"new":2}},"typed":{"y":1,"new":2}}'
        )
        event = self.catalog.decode(message)
        assert event == Placed(
            sku="tea",
            quantity=2,
            extras={"m": Strict(a=1), "d": StrictPoint(x=1)},
            typed={"y": 1},
            message_id=message.message_id,
            occurred_on=message.occurred_on,
        )

    def test_a_renamed_or_moved_class_reads_what_its_predecessor_wrote(self) -> None:
        class PlacedElsewhere(IntegrationEvent, name="test.placed", version=3):
            sku: str
            quantity: int

        event = EventCatalog([PlacedElsewhere]).decode(self.message())
        assert isinstance(event, PlacedElsewhere)
        assert event.sku == "tea"

    def test_a_renamed_event_is_unknown_until_its_old_name_becomes_an_alias(self) -> None:
        class Unaware(IntegrationEvent, name="test.ordered", version=3):
            sku: str

        class Aware(Unaware, name="test.ordered", version=3, aliases=("test.placed",)):
            pass

        with pytest.raises(UnknownEventError, match=r"'test\.placed' is known here.*alias"):
            EventCatalog([Unaware]).decode(self.message())
        assert isinstance(EventCatalog([Aware]).decode(self.message()), Aware)

    @pytest.mark.parametrize(
        ("version", "payload"), [(1, '{"article":"tea"}'), (2, '{"sku":"tea"}'), (3, '{"sku":"tea","quantity":1}')]
    )
    @pytest.mark.parametrize("name", ["test.placed", "placed"])
    def test_an_older_version_goes_through_every_upcaster_on_the_way(
        self, name: str, version: int, payload: str
    ) -> None:
        message = self.message(payload, event_version=version, event_type=name)
        event = self.catalog.decode(message)
        assert event == Placed(sku="tea", quantity=1, message_id=message.message_id, occurred_on=message.occurred_on)

    def test_an_upcaster_may_answer_with_the_precise_types(self) -> None:
        class Priced(DomainEvent, name="test.priced", version=2):
            price: Decimal
            seal: bytes
            rate: float

        @Priced.upcast(from_version=1)
        def precise(data: dict[str, Any]) -> dict[str, Any]:
            return {"price": Decimal("1.10"), "seal": b"\xff", "rate": -math.inf}

        event = EventCatalog([Priced]).decode(self.message("{}", event_type="test.priced", event_version=1))
        assert isinstance(event, Priced)
        assert (event.price, event.seal, event.rate) == (Decimal("1.10"), b"\xff", -math.inf)

    def test_a_newer_version_is_unknown_and_both_versions_are_named(self) -> None:
        with pytest.raises(UnknownEventError, match=r"test\.placed has version 4.* up to version 3"):
            self.catalog.decode(self.message(event_version=4))

    @pytest.mark.parametrize("version", [0, 1])
    def test_a_version_without_a_way_to_the_class_is_unknown_and_both_versions_are_named(self, version: int) -> None:
        class Gap(DomainEvent, name="test.gap", version=3):
            pass

        Gap.upcast(from_version=1)(dict)
        with pytest.raises(UnknownEventError, match=rf"has version {version}, .* to 3: add @Gap\.upcast\(from"):
            EventCatalog([Gap]).decode(self.message(event_type="test.gap", event_version=version))

    @pytest.mark.parametrize(
        ("payload", "reason"),
        [
            ("", "no JSON"),
            ("{", "no JSON"),
            ('{"sku":"\\ud800"}', "no JSON"),
            ("[" * 100_000, "no JSON"),
            ("[]", "no JSON object"),
            ("null", "no JSON object"),
            ('{"sku":"s3cret"}', "quantity: Field required"),
            ('{"sku":"tea","quantity":"s3cret"}', "quantity: Input should be a valid integer"),
            ('{"sku":"tea","quantity":-7}', "quantity: Input should be greater than 0"),
            ('{"sku":["s3cret"],"quantity":1}', "sku: Input should be a valid string"),
            ('{"sku":"tea","quantity":1,"extras":{"s3cret":7}}', "field extras[…][…]: Input should be an object"),
        ],
    )
    def test_what_can_never_be_read_is_undecodable_with_a_reason_and_no_values(self, payload: str, reason: str) -> None:
        with pytest.raises(UndecodableError) as caught:
            self.catalog.decode(self.message(payload))
        assert str(caught.value).startswith("test.placed version 3: ")
        assert reason in str(caught.value)
        assert "s3cret" not in str(caught.value)

    def test_of_many_reasons_the_first_are_enough(self) -> None:
        class Listed(DomainEvent, name="test.listed"):
            numbers: list[int]

        payload = json.dumps({"numbers": ["s3cret"] * 9})
        message = self.message(payload, event_type="test.listed", event_version=1)
        with pytest.raises(UndecodableError, match=r"numbers\[4\]: [^;]*; and 4 more$"):
            EventCatalog([Listed]).decode(message)

    def test_the_words_of_a_validator_are_not_repeated_because_they_may_quote_values(self) -> None:
        class Carded(DomainEvent, name="test.carded"):
            card: str

            @field_validator("card")
            @classmethod
            def _check(cls, value: str) -> str:
                raise {"v": ValueError, "a": AssertionError, "k": KeyError}[value[0]](value)

        reasons = {"v": "field card: value_error", "a": "field card: assertion_error", "k": "raised KeyError"}
        for first, reason in reasons.items():
            message = self.message(json.dumps({"card": f"{first}s3cret"}), event_type="test.carded", event_version=1)
            with pytest.raises(UndecodableError) as caught:
                EventCatalog([Carded]).decode(message)
            assert reason in str(caught.value)
            assert "s3cret" not in str(caught.value)

    @pytest.mark.parametrize("answer", [None, [], object()])
    def test_an_upcaster_that_raises_or_answers_nonsense_makes_the_message_undecodable(self, answer: Any) -> None:
        class Broken(DomainEvent, name="test.broken", version=2):
            value: int = 0

        @Broken.upcast(from_version=1)
        def broken(data: dict[str, Any]) -> dict[str, Any]:
            if answer is None:
                raise KeyError(data["card"])
            return answer if isinstance(answer, list) else {"value": answer}  # type: ignore[return-value]

        message = self.message('{"card":"s3cret"}', event_type="test.broken", event_version=1)
        with pytest.raises(UndecodableError, match=r"test\.broken") as caught:
            EventCatalog([Broken]).decode(message)
        assert "s3cret" not in str(caught.value)

    def test_a_payload_never_decides_what_gets_imported(self) -> None:
        message = self.message(
            '{"value":{"__class__":"os.system","py/object":"os.system","$type":"os.system"}}',
            event_type="test.anything",
            event_version=1,
        )
        event = self.catalog.decode(message)
        assert type(event) is Anything
        assert type(event.value) is dict
        for name in ("os.system", "mailroom.events.Event", "test_catalog.Placed"):
            with pytest.raises(UnknownEventError):
                self.catalog.decode(replace(message, event_type=name))
