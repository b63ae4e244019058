"""What makes a class an event, and what is refused when it is defined (contract O3, O4)."""

from abc import ABC
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

import pytest
from pydantic import Field, ValidationError, create_model

from mailroom.events import LAST_VERSION, NAME_LENGTH, DomainEvent, Event, IntegrationEvent, Kind
from mailroom.persistence import tables

T = TypeVar("T")


class Paid(IntegrationEvent, name="shop.paid", version=3, aliases=("shop.payed",)):
    amount: int


class TestStamps:
    def test_an_event_is_stamped_with_its_own_id_and_the_time_in_utc(self) -> None:
        before = datetime.now(UTC)
        one, other = Paid(amount=1), Paid(amount=1)
        assert isinstance(one.message_id, UUID)
        assert one.message_id != other.message_id
        assert before <= one.occurred_on <= datetime.now(UTC)
        assert one.occurred_on.tzinfo is UTC

    def test_both_stamps_may_be_passed_and_the_time_is_kept_in_utc(self) -> None:
        message_id, noon = uuid4(), datetime(2024, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))
        event = Paid(amount=1, message_id=message_id, occurred_on=noon)
        assert (event.message_id, event.occurred_on) == (message_id, noon)
        assert event.occurred_on.tzinfo is UTC

    @pytest.mark.parametrize(
        "moment", [datetime(2024, 5, 1, 12), datetime.min.replace(tzinfo=timezone(timedelta(hours=2)))]
    )
    def test_a_time_that_is_naive_or_outside_the_calendar_is_refused(self, moment: datetime) -> None:
        with pytest.raises(ValidationError, match="occurred_on"):
            Paid(amount=1, occurred_on=moment)

    def test_an_event_never_changes_and_takes_no_unknown_fields(self) -> None:
        with pytest.raises(ValidationError, match="frozen"):
            Paid(amount=1).amount = 2  # type: ignore[misc]
        with pytest.raises(ValidationError, match="amuont"):
            Paid(amount=1, amuont=2)  # type: ignore[call-arg]


class TestNames:
    def test_the_class_line_says_name_version_and_aliases_and_the_base_says_the_kind(self) -> None:
        class Moved(DomainEvent, name="Shop_2.moved-on"):
            pass

        assert (Paid.event_name, Paid.event_version, Paid.event_aliases) == ("shop.paid", 3, ("shop.payed",))
        assert (Moved.event_name, Moved.event_version, Moved.event_aliases) == ("Shop_2.moved-on", 1, ())
        assert (Paid.kind, Moved.kind) == (Kind.INTEGRATION, Kind.DOMAIN)

    @pytest.mark.parametrize("name", ["", ".a", "-a", "a b", "a\n", "ä", "a/b", "a" * (NAME_LENGTH + 1), 7])
    def test_a_bad_name_is_refused_for_the_event_and_for_an_alias(self, name: Any) -> None:
        with pytest.raises(TypeError, match="is no event name"):

            class Bad(IntegrationEvent, name=name):
                pass

        with pytest.raises(TypeError, match="the alias"):

            class BadToo(IntegrationEvent, name="shop.bad", aliases=(name,)):
                pass

    def test_the_longest_name_fits_the_column_and_is_accepted(self) -> None:
        class Long(IntegrationEvent, name="a" * NAME_LENGTH):
            pass

        assert Long().event_name == "a" * NAME_LENGTH
        assert NAME_LENGTH == tables.NAME_LENGTH

    @pytest.mark.parametrize("version", [0, -1, LAST_VERSION + 1, True, 1.0, "1"])
    def test_a_version_that_is_no_whole_number_from_1_is_refused(self, version: Any) -> None:
        with pytest.raises(TypeError, match="the version must be a whole number from 1"):

            class Bad(IntegrationEvent, name="shop.bad", version=version):
                pass

    @pytest.mark.parametrize("aliases", [("shop.bad",), ("shop.old", "shop.old")])
    def test_an_alias_that_repeats_is_refused(self, aliases: tuple[str, ...]) -> None:
        with pytest.raises(TypeError, match="repeats"):

            class Bad(IntegrationEvent, name="shop.bad", aliases=aliases):
                pass

    def test_a_text_instead_of_a_tuple_of_aliases_is_refused(self) -> None:
        with pytest.raises(TypeError, match=r"aliases=\('old',\)"):

            class Bad(IntegrationEvent, name="shop.bad", aliases="old"):
                pass

    def test_a_forgotten_name_is_refused_where_the_class_is_defined(self) -> None:
        with pytest.raises(TypeError, match="Forgotten has no event name"):

            class Forgotten(IntegrationEvent):
                pass

    def test_a_version_or_alias_without_a_name_is_refused(self) -> None:
        with pytest.raises(TypeError, match="but no name"):

            class Bad(IntegrationEvent, ABC, version=2):
                pass

    def test_a_subclass_does_not_inherit_the_name_of_a_named_event(self) -> None:
        with pytest.raises(TypeError, match="PaidTwice has no event name"):

            class PaidTwice(Paid):
                pass

        class PaidLate(Paid, name="shop.paid-late"):
            pass

        class PaidSomehow(Paid, ABC):
            pass

        assert (PaidLate.event_version, PaidLate.event_aliases, PaidLate.upcasters) == (1, (), {})
        with pytest.raises(TypeError, match="PaidSomehow has no event name"):
            PaidSomehow(amount=1)

    @pytest.mark.parametrize("bases", [(Event,), (DomainEvent, IntegrationEvent)])
    def test_an_event_is_either_a_domain_or_an_integration_event(self, bases: tuple[type[Event], ...]) -> None:
        with pytest.raises(TypeError, match="either DomainEvent or IntegrationEvent"):
            create_model("Neither", __base__=bases, __cls_kwargs__={"name": "shop.neither"})


class TestBases:
    def test_a_nameless_base_shares_fields_and_is_never_created_itself(self) -> None:
        class ShopEvent(IntegrationEvent, ABC):
            tenant: str

        class Opened(ShopEvent, name="shop.opened"):
            pass

        assert Opened(tenant="t").kind is Kind.INTEGRATION
        bases: list[Any] = [ShopEvent, IntegrationEvent, DomainEvent, Event]
        for base in bases:
            with pytest.raises(TypeError, match=f"{base.__name__} has no event name"):
                base(tenant="t")
            with pytest.raises(TypeError, match=f"{base.__name__} has no event name"):
                base.model_construct(tenant="t")

    def test_a_generic_base_is_named_once_its_parameters_are_given(self) -> None:
        class Changed(DomainEvent, ABC, Generic[T]):
            value: T

        class PriceChanged(Changed[int], name="shop.price-changed"):
            pass

        assert PriceChanged(value=3).value == 3
        with pytest.raises(TypeError, match="has no event name"):
            Changed[str](value="x")
        with pytest.raises(TypeError, match="generic"):

            class AnythingChanged(Changed[T], Generic[T], name="shop.anything-changed"):
                pass


class TestReservedNames:
    @pytest.mark.parametrize(
        "name",
        ["message_id", "occurred_on", "kind", "event_name", "event_version", "event_aliases", "upcast", "upcasters"],
    )
    @pytest.mark.filterwarnings("ignore:Field name")
    def test_a_field_named_like_what_every_event_has_is_refused(self, name: str) -> None:
        fields: Any = {name: (str, ...)}
        with pytest.raises(TypeError, match=f"cannot define {name}"):
            create_model("Bad", __base__=IntegrationEvent, __cls_kwargs__={"name": "shop.bad"}, **fields)

    def test_a_constant_of_such_a_name_is_refused(self) -> None:
        with pytest.raises(TypeError, match="cannot define kind"):

            class Bad(IntegrationEvent, name="shop.bad"):
                kind = Kind.DOMAIN

    @pytest.mark.parametrize("field", [{"alias": "message_id"}, {"serialization_alias": "occurred_on"}])
    def test_a_field_that_is_written_under_such_a_name_is_refused(self, field: dict[str, Any]) -> None:
        with pytest.raises(TypeError, match="cannot define"):

            class Bad(IntegrationEvent, name="shop.bad"):
                own: str = Field(**field)

    @pytest.mark.parametrize("name", ["payload", "headers", "ordering_key", "event_type"])
    def test_other_words_of_the_envelope_are_free_because_the_payload_is_apart(self, name: str) -> None:
        fields: Any = {name: (str, ...)}
        event = create_model("Free", __base__=IntegrationEvent, __cls_kwargs__={"name": "shop.free"}, **fields)
        values: Any = {name: "mine"}
        assert getattr(event(**values), name) == "mine"

    def test_an_event_that_could_change_is_refused(self) -> None:
        with pytest.raises(TypeError, match="not frozen"):

            class Bad(IntegrationEvent, name="shop.bad", frozen=False):
                pass


class TestUpcasters:
    @pytest.fixture
    def versioned(self) -> type[Event]:
        class Versioned(IntegrationEvent, name="shop.versioned", version=3):
            pass

        return Versioned

    def test_the_decorator_returns_the_function_unchanged(self, versioned: type[Event]) -> None:
        def step(data: dict[str, Any]) -> dict[str, Any]:
            return data

        assert versioned.upcast(from_version=2)(step) is step
        assert versioned.upcasters == {2: step}

    def test_upcasters_belong_to_one_class(self, versioned: type[Event]) -> None:
        versioned.upcast(from_version=2)(dict)
        assert Paid.upcasters == {}

    def test_a_second_upcaster_from_one_version_is_refused(self, versioned: type[Event]) -> None:
        versioned.upcast(from_version=1)(dict)
        with pytest.raises(ValueError, match="already has an upcaster from version 1"):
            versioned.upcast(from_version=1)(dict)

    @pytest.mark.parametrize("version", [0, 3, 4])
    def test_an_upcaster_from_no_older_version_is_refused(self, versioned: type[Event], version: int) -> None:
        with pytest.raises(ValueError, match=f"has version 3, so there is no upcasting from {version}"):
            versioned.upcast(from_version=version)

    def test_a_base_takes_no_upcasters(self) -> None:
        upcast: Callable[..., object] = IntegrationEvent.upcast
        with pytest.raises(TypeError, match="upcasters belong to its named subclasses"):
            upcast(from_version=1)
