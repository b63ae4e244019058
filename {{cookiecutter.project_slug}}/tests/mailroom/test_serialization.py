"""What the envelope of an event says, and what is refused before it is stored (O3, O4)."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, PrivateAttr, field_serializer, field_validator

from mailroom.catalog import EventCatalog
from mailroom.envelope import Message
from mailroom.errors import SerializationError
from mailroom.events import DomainEvent, Event, IntegrationEvent, Kind
from mailroom.serialization import encode


class Money(BaseModel):
    amount: Decimal
    rate: float
    seal: bytes


class BigMoney(Money):
    bank: str


@dataclass(frozen=True)
class Point:
    x: float
    label: bytes


class Anything(IntegrationEvent, name="test.anything"):
    value: Any = None


class Text(IntegrationEvent, name="test.text"):
    text: str = ""
    texts: dict[str, list[str]] = Field(default_factory=dict)


def roundtrip(event: Event) -> Any:
    return EventCatalog([type(event)]).decode(encode(event))


class TestEnvelope:
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

    def test_a_message_shows_neither_payload_nor_headers_where_it_is_printed(self) -> None:
        assert "s3cret" not in repr(encode(Text(text="s3cret"), headers={"a": "s3cret"}))


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
