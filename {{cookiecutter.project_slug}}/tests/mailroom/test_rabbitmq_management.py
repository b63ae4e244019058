"""Contract A1: which bindings there are, asked of the broker's HTTP API; no password in what goes wrong."""

import socket
from typing import Any

import pytest
from pydantic import SecretStr
from rabbitmq_management import Api

from mailroom.errors import TransportUnavailableError
from mailroom.messaging.transports.rabbitmq.management import Binding, Management
from mailroom.settings import RabbitMQSettings


def management(management_url: str, **settings: Any) -> Management:
    given = {"url": "amqp://bob:open%2Fsesame@broker/", "connect_timeout_seconds": 0.2} | settings
    return Management(RabbitMQSettings(management_url=SecretStr(management_url), **given))


async def problem(asked: Management) -> str:
    with pytest.raises(TransportUnavailableError) as raised:
        await asked.bindings("events", "shop.events")
    said = str(raised.value)
    assert "rabbitmq.management_url" in said
    assert not any(secret in said for secret in ("s@me", "s%40me", "sesame"))
    return said


async def test_it_tells_the_bindings_of_the_queue_to_the_exchange(api: Api) -> None:
    api.bind("events", "shop.events", "a.b", "c.d")
    assert await management(api.url).bindings("events", "shop.events") == [Binding("a.b"), Binding("c.d")]
    assert api.asked == ["/api/bindings/%2F/e/events/q/shop.events"]
    assert api.logins == ["anna:s@me"]


@pytest.mark.parametrize(("path", "host"), [("/", "%2F"), ("/shop%2Feu%20west", "shop%2Feu%20west")])
async def test_the_virtual_host_is_quoted(api: Api, path: str, host: str) -> None:
    await management(api.url, url=f"amqp://bob@broker{path}").bindings("events", "shop.events")
    assert api.asked == [f"/api/bindings/{host}/e/events/q/shop.events"]


@pytest.mark.parametrize("end", ["", "/", "/api", "/api/"])
async def test_the_url_may_end_as_people_write_it(api: Api, end: str) -> None:
    await management(api.url + end).bindings("events", "shop.events")
    assert api.asked == ["/api/bindings/%2F/e/events/q/shop.events"]


async def test_without_a_user_of_its_own_it_is_the_broker_s(api: Api) -> None:
    await management(api.without_login).bindings("events", "shop.events")
    assert api.logins == ["bob:open/sesame"]


async def test_what_is_not_there_has_no_bindings(api: Api) -> None:
    api.status = 404
    assert await management(api.url).bindings("events", "shop.events") == []


@pytest.mark.parametrize(("status", "said"), [(401, "refuses the login"), (403, "management"), (500, "answers 500")])
async def test_a_refusal_is_told(api: Api, status: int, said: str) -> None:
    api.status = status
    assert said in await problem(management(api.url))


@pytest.mark.parametrize("answer", [b"<html>", b'{"error": "x"}', b'[{"routing_key": "a"}]', b"\xff"])
async def test_something_else_than_bindings_is_told(api: Api, answer: bytes) -> None:
    api.answer = answer
    assert "is it the management API" in await problem(management(api.url))


async def test_a_redirect_is_not_followed_since_the_password_is_for_this_address(api: Api) -> None:
    api.status, api.location = 302, f"{api.without_login}/elsewhere"
    assert "answers 302" in await problem(management(api.url))
    assert len(api.asked) == 1


async def test_one_that_is_away_is_told() -> None:
    assert "cannot be reached" in await problem(management("http://anna:s%40me@127.0.0.1:1"))


async def test_one_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://anna:s%40me@127.0.0.1:{silent.getsockname()[1]}"
        assert "cannot be reached: timed out" in await problem(management(url))


async def test_proxies_of_the_environment_are_not_asked(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert await management(api.url).bindings("events", "shop.events") == []
