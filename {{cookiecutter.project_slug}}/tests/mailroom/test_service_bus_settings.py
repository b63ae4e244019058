"""Contract P2: what is said about a namespace of Azure Service Bus, and what is refused, in words without its key."""

from typing import Any

import pytest
from pydantic import SecretStr

from mailroom.errors import ConfigurationError
from mailroom.settings import ServiceBusSettings, Settings

KEY = "SharedAccessKeyName=shop;SharedAccessKey=sesame="
IN_AZURE = f"Endpoint=sb://shop.servicebus.windows.net/;{KEY}"
EMULATOR = f"Endpoint=sb://localhost;{KEY};UseDevelopmentEmulator=true"


def bus(**section: Any) -> ServiceBusSettings:
    return Settings(database={"url": "sqlite:///shop.db"}, service_bus=section).service_bus


def refusal(**section: Any) -> str:
    with pytest.raises(ConfigurationError) as raised:
        bus(**section)
    return str(raised.value)


@pytest.mark.parametrize(
    ("given", "host"),
    [
        (IN_AZURE, "shop.servicebus.windows.net"),
        (f"  {IN_AZURE}\n", "shop.servicebus.windows.net"),
        ("sharedaccesskey=sesame;ENDPOINT = sb://shop.servicebus.windows.net ;sharedAccessKeyName=shop", None),
        ("Endpoint=sb://shop.servicebus.windows.net;SharedAccessSignature=SharedAccessSignature sr=a&sig=b%3D", None),
        (EMULATOR, "localhost"),
        (f"Endpoint=sb://127.0.0.1:5673/;{KEY}", "127.0.0.1:5673"),
        (f"Endpoint=sb://[::1]:5673/;{KEY}", "[::1]:5673"),
    ],
)
def test_the_host_is_that_of_the_connection_string_without_the_key(given: str, host: str | None) -> None:
    found = bus(connection_string=given)
    assert found.host == (host or "shop.servicebus.windows.net")
    assert "sesame" not in f"{found!r} {found.model_dump()}"


def test_a_namespace_is_its_own_host() -> None:
    assert bus(namespace=" shop.servicebus.windows.net ").host == "shop.servicebus.windows.net"
    assert bus().host == "no namespace"


@pytest.mark.parametrize(
    "given",
    [
        "sesame",
        "",
        KEY,
        f"Endpoint=;{KEY}",
        f"Endpoint=shop.servicebus.windows.net;{KEY}",
        "Endpoint=sb://shop.servicebus.windows.net/",
        "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKey=sesame",
        "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=sesame",
        f"Endpoint=sb://shop.servicebus.windows.net:sesame/;{KEY}",
        f"Endpoint=sb://shop.servicebus.windows.net:0/;{KEY}",
        f"Endpoint=sb://[sesame/;{KEY}",
    ],
)
def test_what_is_no_connection_string_is_refused_in_one_line_with_an_example_and_without_the_key(given: str) -> None:
    text = refusal(connection_string=given)
    assert text.startswith("service_bus.connection_string: is no connection string with an endpoint and a key")
    assert "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=" in text
    assert "\n" not in text
    assert "sesame" not in text


def test_one_that_is_of_a_single_queue_or_topic_is_refused_with_the_reason() -> None:
    """The client would refuse everything else with it."""
    text = refusal(connection_string=f"{IN_AZURE};EntityPath=shop.events")
    assert text.startswith("service_bus.connection_string: is of shop.events alone")
    assert "sesame" not in text


@pytest.mark.parametrize(
    "given", ["shop", "https://shop.servicebus.windows.net", "shop.servicebus.windows.net/", "a b.c"]
)
def test_a_namespace_is_a_host_name_and_no_url(given: str) -> None:
    assert refusal(namespace=given).startswith("service_bus.namespace: must ")


@pytest.mark.parametrize(
    ("given", "is_emulator"),
    [
        (EMULATOR, True),
        (EMULATOR.replace("=true", "=True;"), True),
        (EMULATOR.replace("=true", "=false"), False),
        (IN_AZURE, False),
    ],
)
def test_the_connection_string_says_whether_it_is_an_emulator(given: str, is_emulator: bool) -> None:
    assert bus(connection_string=given).is_emulator is is_emulator


def test_a_management_url_is_one_of_http() -> None:
    assert bus(management_url=" http://127.0.0.1:5300 ").management_url == "http://127.0.0.1:5300"
    assert bus(management_url="https://emulator/").management_url == "https://emulator/"
    assert bus().management_url is None
    for given in ("127.0.0.1:5300", "sb://127.0.0.1", "http://", "http://127.0.0.1:0", "http://127.0.0.1:x"):
        assert refusal(management_url=given).startswith("service_bus.management_url: is no URL with http or https")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delivery_limit", 4),
        ("delivery_limit", 2001),
        ("lock_seconds", 4),
        ("lock_seconds", 301),
        ("lock_renewal_limit_seconds", 0),
        ("connect_timeout_seconds", 0),
        ("confirm_timeout_seconds", 0),
    ],
)
def test_bounds_are_checked(name: str, value: int) -> None:
    assert refusal(**{name: value}).startswith(f"service_bus.{name}: must be ")


@pytest.mark.parametrize("topic", ["", "-events", "a b", "a/b", "a" * 121])
def test_a_topic_that_cannot_be_called_so_is_refused(topic: str) -> None:
    assert refusal(topic=topic).startswith("service_bus.topic: ")


def test_a_connection_string_that_was_read_is_kept_as_a_secret() -> None:
    assert bus(connection_string=IN_AZURE).connection_string == SecretStr(IN_AZURE)
