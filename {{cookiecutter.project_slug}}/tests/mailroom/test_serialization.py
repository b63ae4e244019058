"""What JSON keeps, what is refused before it is stored, and how old and damaged messages are read (O3, O4, R5)."""

import json
import math
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypedDict

from mailroom.envelope import Message
from mailroom.errors import ConfigurationError, SerializationError, UndecodableError, UnknownEventError
from mailroom.events import DomainEvent, Event, IntegrationEvent, Kind
from mailroom.serialization import EventCatalog, encode


class Colour(StrEnum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Shape(Enum):
    ROUND = "round"
    FLAT = 7


class Money(BaseModel):
    """An ordinary model: it was not made for events, and its own configuration would write null for NaN."""

    amount: Decimal
    rate: float
    seal: bytes


class BigMoney(Money):
    bank: str


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = 0


@pydantic_dataclass(config=ConfigDict(extra="forbid"))
class StrictPoint:
    x: int


class StrictDict(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    y: int


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


@dataclass(frozen=True)
class Point:
    x: float
    label: bytes


class Pair(NamedTuple):
    left: float
    right: Decimal


class Everything(IntegrationEvent, name="test.everything"):
    decimal: Decimal
    uuid: UUID
    moment: AwareDatetime
    day: date
    hour: time
    span: timedelta
    colour: Colour
    size: Size
    shape: Shape
    raw: bytes
    text: str
    number: int
    real: float
    yes: bool
    nested: Money
    maybe: Money | None
    models: list[Money]
    point: Point
    pair: Pair
    by_uuid: dict[UUID, Decimal]
    by_text: dict[str, list[float]]
    by_day: dict[date, Shape]
    numbers: set[int]
    frozen: frozenset[Decimal]
    mixed: tuple[int, str, float]
    many: tuple[bytes, ...]
    queue: deque[UUID]
    either: int | str | None
    measure: float | None
    number_or_sum: int | float | Money
    literal: Literal["a", 1]


class Anything(IntegrationEvent, name="test.anything"):
    value: Any = None


class Text(IntegrationEvent, name="test.text"):
    text: str = ""
    texts: dict[str, list[str]] = Field(default_factory=dict)


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
OFFSETS = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))
FLOATS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0])
MOMENTS = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 30), timezones=OFFSETS)
MONEY = st.builds(Money, amount=DECIMALS, rate=FLOATS, seal=st.binary())
EVENTS = st.builds(
    Everything,
    decimal=DECIMALS,
    uuid=st.uuids(),
    moment=MOMENTS,
    day=st.dates(),
    hour=st.times(),
    span=st.timedeltas(),
    colour=st.sampled_from(Colour),
    size=st.sampled_from(Size),
    shape=st.sampled_from(Shape),
    raw=st.binary(),
    text=TEXT,
    number=st.integers() | st.integers(10**300, 10**400),
    real=FLOATS,
    yes=st.booleans(),
    nested=MONEY,
    maybe=st.none() | MONEY,
    models=st.lists(MONEY, max_size=3),
    point=st.builds(Point, x=FLOATS, label=st.binary()),
    pair=st.builds(Pair, left=FLOATS, right=DECIMALS),
    by_uuid=st.dictionaries(st.uuids(), DECIMALS, max_size=3),
    by_text=st.dictionaries(TEXT, st.lists(FLOATS, max_size=3), max_size=3),
    by_day=st.dictionaries(st.dates(), st.sampled_from(Shape), max_size=3),
    numbers=st.sets(st.integers(), max_size=3),
    frozen=st.frozensets(DECIMALS, max_size=3),
    mixed=st.tuples(st.integers(), TEXT, FLOATS),
    many=st.lists(st.binary(), max_size=3).map(tuple),
    queue=st.lists(st.uuids(), max_size=3).map(deque),
    either=st.none() | st.integers() | TEXT,
    measure=st.none() | FLOATS,
    number_or_sum=st.integers() | FLOATS | MONEY,
    literal=st.sampled_from(["a", 1]),
    message_id=st.uuids(),
    occurred_on=MOMENTS,
)


def exact(value: Any) -> Any:
    """What tells values apart more sharply than `==`: NaN equals itself, and 0.0 is neither -0.0, 0 nor False."""
    if isinstance(value, BaseModel):
        return type(value), {name: exact(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Point):
        return Point, exact(value.x), value.label
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return type(value), {exact(item) for item in value}
    if isinstance(value, list | tuple | deque):
        return type(value), [exact(item) for item in value]
    if isinstance(value, datetime):
        return datetime, value.astimezone(UTC), value.utcoffset()
    if isinstance(value, time):
        return time, value.replace(fold=0)
    return type(value), repr(value)


def no_constants(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def roundtrip(event: Event, **how: Any) -> Any:
    return EventCatalog([type(event)]).decode(encode(event, **how))


class TestRoundTrip:
    @given(EVENTS)
    def test_every_type_of_the_contract_comes_back_as_it_was(self, event: Everything) -> None:
        assert exact(roundtrip(event)) == exact(event)

    @given(EVENTS)
    def test_the_payload_is_one_object_of_standard_json_without_what_the_envelope_carries(
        self, event: Everything
    ) -> None:
        data = json.loads(encode(event).payload, parse_constant=no_constants)
        assert data.keys() == Everything.model_fields.keys() - {"message_id", "occurred_on"}

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308])
    def test_the_floats_that_json_lacks_come_back_at_every_depth(self, number: float) -> None:
        class Floats(DomainEvent, name="test.floats"):
            top: float
            either: int | float
            model: Money
            point: Point
            by_name: dict[str, float | None]

        event = Floats(
            top=number,
            either=number,
            model=Money(amount=Decimal("1.10"), rate=number, seal=b"\xff\0"),
            point=Point(number, b"\xfe"),
            by_name={"a": number, "b": None},
        )
        assert exact(roundtrip(event)) == exact(event)
        json.loads(encode(event).payload, parse_constant=no_constants)

    def test_the_envelope_says_what_the_event_is_called_and_when_it_happened(self) -> None:
        class Happened(DomainEvent, name="test.happened", version=4):
            pass

        event = Happened()
        assert encode(event, headers={"correlation_id": "ü"}, ordering_key="k") == Message(
            message_id=event.message_id,
            kind=Kind.DOMAIN,
            event_type="test.happened",
            event_version=4,
            payload="{}",
            headers={"correlation_id": "ü"},
            occurred_on=event.occurred_on,
            ordering_key="k",
        )
        assert encode(event).headers == {}

    def test_an_hour_that_a_time_zone_has_twice_does_not_fail_the_commit(self) -> None:
        class Autumn(tzinfo):
            def utcoffset(self, moment: datetime | None) -> timedelta:
                return timedelta(hours=1 if moment is not None and moment.fold else 2)

            def dst(self, moment: datetime | None) -> None:
                return None

            def tzname(self, moment: datetime | None) -> str:
                return "autumn"

        class Met(DomainEvent, name="test.met"):
            on: AwareDatetime
            others: set[AwareDatetime] = Field(default_factory=set)

        moment = datetime(2024, 10, 27, 2, 30, tzinfo=Autumn())
        assert roundtrip(Met(on=moment)) != Met(on=moment)  # in the eyes of Python, whence the test
        for fold in (0, 1):
            folded = moment.replace(fold=fold)
            read = roundtrip(Met(on=folded, others={folded}))
            assert read.on == folded.astimezone(UTC)

    def test_aliases_are_what_is_written_and_both_spellings_are_read(self) -> None:
        class Camel(DomainEvent, name="test.camel", alias_generator=to_camel):
            order_id: int

        event = Camel.model_validate({"orderId": 1})
        assert encode(event).payload == '{"orderId":1}'
        assert roundtrip(event) == event
        assert EventCatalog([Camel]).decode(replace(encode(event), payload='{"order_id":1}')) == event
        foreign = replace(encode(event), payload=json.dumps({"orderId": 1, "messageId": str(uuid4())}))
        assert EventCatalog([Camel]).decode(foreign) == event

    def test_validators_of_the_event_see_the_time_of_the_envelope_and_not_that_of_the_reading(self) -> None:
        class Offer(DomainEvent, name="test.offer"):
            until: AwareDatetime

            @model_validator(mode="after")
            def _check(self) -> "Offer":
                assert self.until > self.occurred_on
                return self

        then = datetime(2020, 1, 1, tzinfo=UTC)
        event = Offer(occurred_on=then, until=then + timedelta(hours=1))
        assert roundtrip(event) == event

    def test_fields_and_defaults_that_look_like_a_schema_are_not_taken_for_one(self) -> None:
        class Odd(DomainEvent, name="test.odd"):
            default: Money
            config: dict[str, Any] = Field(default={"type": "model"})

        event = Odd(default=Money(amount=Decimal(1), rate=math.nan, seal=b"\xff"))
        assert exact(roundtrip(event)) == exact(event)
        bare = replace(encode(event), payload=encode(event).payload.partition(',"config"')[0] + "}")
        assert exact(EventCatalog([Odd]).decode(bare)) == exact(event)

    def test_a_default_that_pydantic_never_validated_does_not_fail_the_commit(self) -> None:
        class Free(DomainEvent, name="test.free"):
            price: Decimal = 0  # type: ignore[assignment]
            rate: float | Decimal = 0

        event = Free()
        assert roundtrip(event) == event

    def test_a_subclass_of_an_event_is_written_by_its_own_fields(self) -> None:
        class TextWithMore(Text, name="test.text-with-more"):
            more: int

        encode(Text())
        assert roundtrip(event := TextWithMore(more=1)) == event

    def test_a_model_that_holds_itself_comes_back(self) -> None:
        class Planted(DomainEvent, name="test.planted"):
            tree: Tree

        event = Planted(tree=Tree(rate=math.inf, children=[Tree(rate=math.nan), Tree(rate=1.5)]))
        assert exact(roundtrip(event)) == exact(event)

    def test_an_open_model_keeps_its_extra_fields(self) -> None:
        class Logged(DomainEvent, name="test.logged"):
            more: Open

        event = Logged(more=Open.model_validate({"a": 1, "b": ["x"]}))
        assert roundtrip(event) == event

    def test_what_is_computed_is_neither_written_nor_missed(self) -> None:
        class Summed(DomainEvent, name="test.summed"):
            parts: list[int]

            @property
            def total(self) -> int:
                return sum(self.parts)

        assert roundtrip(Summed(parts=[1, 2])).total == 3


class Tree(BaseModel):
    rate: float
    children: list["Tree"] = []


class TestRefusals:
    """Contract O3: what could not be read back fails the commit, with the event, the field and no values."""

    def refuse(self, event: Event, *words: str, secret: str | None = "s3cret") -> str:
        with pytest.raises(SerializationError) as caught:
            encode(event)
        for word in (type(event).event_name, *words):
            assert word in str(caught.value)
        if secret is not None:
            assert secret not in str(caught.value)
        return str(caught.value)

    @pytest.mark.parametrize(
        "value",
        [
            Decimal("1.10"),
            UUID(int=7),
            (1, 2),
            {1},
            {1: "s3cret"},
            datetime(2024, 1, 1, tzinfo=UTC),
            Point(1.0, b""),
            math.nan,
            b"s3cret",
            Decimal("sNaN"),
            [{"a": [Decimal("1.10")]}],
        ],
        ids=repr,
    )
    def test_a_value_that_any_would_read_back_as_something_else_is_refused(self, value: Any) -> None:
        self.refuse(Anything(value=value), "field value", "Declare the precise type")

    @pytest.mark.parametrize("value", [object(), print, 1j, type], ids=["object", "function", "complex", "class"])
    def test_a_value_that_has_no_json_is_refused(self, value: Any) -> None:
        self.refuse(Anything(value=value), "field value")

    def test_a_value_without_end_is_refused(self) -> None:
        circle: list[Any] = []
        circle.append(circle)
        self.refuse(Anything.model_construct(value=circle), "value")
        deep: list[Any] = []
        for _ in range(5000):
            deep = [deep]
        self.refuse(Anything.model_construct(value=deep))

    def test_a_subclass_in_a_field_of_its_base_is_refused_because_it_would_lose_what_it_adds(self) -> None:
        class Paid(DomainEvent, name="test.paid"):
            money: list[Money]

        big = BigMoney(amount=Decimal(1), rate=1.0, seal=b"", bank="s3cret")
        self.refuse(Paid(money=[Money(amount=Decimal(1), rate=1.0, seal=b""), big]), "field money[1]")

    def test_nan_where_text_is_possible_too_is_refused(self) -> None:
        class Measured(DomainEvent, name="test.measured"):
            value: float | str

        assert roundtrip(Measured(value="NaN")).value == "NaN"
        self.refuse(Measured(value=math.nan), "field value")

    def test_values_that_were_never_validated_are_refused(self) -> None:
        wrong: list[tuple[str, Any]] = [("text", 3), ("texts", {"s3cret": ["a", 5]})]
        for field, value in wrong:
            self.refuse(Text.model_construct(**{field: value}), f"field {field}")
        self.refuse(Text.model_construct(occurred_on=datetime(2024, 1, 1)), "occurred_on")

    def test_what_is_excluded_or_private_is_refused_where_it_would_be_missed(self) -> None:
        class Hidden(DomainEvent, name="test.hidden"):
            needed: str = Field(exclude=True)

        class Defaulted(DomainEvent, name="test.defaulted"):
            spare: str = Field(default="a", exclude=True)
            _note: str = PrivateAttr(default="")

        self.refuse(Hidden(needed="s3cret"), "needed", "Field required")
        event = Defaulted()
        assert roundtrip(event) == event
        self.refuse(Defaulted(spare="s3cret"), "field spare")
        noted = Defaulted()
        noted._note = "s3cret"
        self.refuse(noted, "field _note")

    def test_what_code_of_the_event_raises_while_writing_or_reading_is_refused(self) -> None:
        class Unwritable(DomainEvent, name="test.unwritable"):
            fine: int = 1
            card: str

            @field_serializer("card")
            def _write(self, value: str) -> str:
                raise KeyError(value)

        class Unreadable(DomainEvent, name="test.unreadable"):
            card: str

            @field_validator("card")
            @classmethod
            def _read(cls, value: str) -> str:
                if armed:
                    raise armed[0](value)
                return value

        armed: list[type[Exception]] = []
        self.refuse(Unwritable(card="s3cret"), "field card")
        event = Unreadable(card="s3cret")
        for error in (ValueError, KeyError):
            armed[:] = [error]
            self.refuse(event)

    @pytest.mark.parametrize("event", [Text(text="\ud800"), Text(texts={"\udfff": []}), Text(texts={"a": ["\ud83d"]})])
    def test_a_lone_surrogate_is_refused(self, event: Text) -> None:
        self.refuse(event, "field text")

    @pytest.mark.parametrize(
        ("event", "field"),
        [
            (Text(text="\0"), "field text"),
            (Text(text="a\\\0"), "field text"),
            (Text(text="\\u0000 and \0"), "field text"),
            (Text(texts={"s3cret": ["a", "b\0"]}), "field texts[key][1]"),
            (Text(texts={"s3cret\0": []}), "field texts[key]"),
        ],
    )
    def test_nul_in_text_is_refused_at_the_commit(self, event: Text, field: str) -> None:
        self.refuse(event, field, "NUL")

    @pytest.mark.parametrize(
        "text", ["\\u0000", "\\\\u0000", "\\\\\\u0000", "C:\\u0000\\", "\\", "\\\\", "\x01\x1f\x7f"]
    )
    def test_a_text_that_only_spells_nul_is_kept(self, text: str) -> None:
        assert roundtrip(Text(text=text)).text == text
        assert roundtrip(Text(texts={text: [text]})).texts == {text: [text]}

    @given(st.text(st.sampled_from('\\\0u0a"')))
    def test_nul_is_refused_exactly_where_there_is_one(self, text: str) -> None:
        if "\0" in text:
            self.refuse(Text(text=text), "NUL", secret=None)
        else:
            assert roundtrip(Text(text=text)).text == text

    @pytest.mark.parametrize(
        "headers",
        [{"a": "\0"}, {"a\0": ""}, {"a": "\ud800"}, {"\udfff": ""}, {"": "a"}, {"a": 1}, {1: "a"}, {"a": None}],
    )
    def test_headers_that_are_no_storable_text_are_refused(self, headers: Any) -> None:
        with pytest.raises(SerializationError, match=r"test\.text: header"):
            encode(Text(), headers=headers)

    @pytest.mark.parametrize("key", ["", "k" * 201, "\0", "\ud800", 7])
    def test_an_ordering_key_that_no_column_holds_is_refused(self, key: Any) -> None:
        with pytest.raises(SerializationError, match=r"test\.text: the ordering key"):
            encode(Text(), ordering_key=key)

    def test_the_longest_ordering_key_is_accepted(self) -> None:
        assert encode(Text(), ordering_key="k" * 200).ordering_key == "k" * 200

    def test_a_message_shows_neither_payload_nor_headers_where_it_is_printed(self) -> None:
        assert "s3cret" not in repr(encode(Text(text="s3cret"), headers={"a": "s3cret"}))


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
            with pytest.raises(ConfigurationError, match=r"test_serialization\.(Text|.*Other).*'test\.text'"):
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
        for name in ("os.system", "mailroom.events.Event", "test_serialization.Placed"):
            with pytest.raises(UnknownEventError):
                self.catalog.decode(replace(message, event_type=name))
