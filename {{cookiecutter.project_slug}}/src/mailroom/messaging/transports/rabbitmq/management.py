"""What only the broker's HTTP API tells: which bindings there are. AMQP can make them, and not list them."""

import asyncio
import base64
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from typing import Any, cast
from urllib.error import HTTPError
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

from mailroom.errors import TransportUnavailableError
from mailroom.settings import RabbitMQSettings

LARGEST_ANSWER = 50_000_000
"""Bytes; nobody has so many bindings."""
SETTING = "rabbitmq.management_url"


@dataclass(frozen=True, slots=True)
class Binding:
    """One binding of a queue to an exchange."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Management:
    """The HTTP API of the broker that `rabbitmq.management_url` names; the user in it, or else that of `rabbitmq.url`.

    Its errors name the setting and no password.
    """

    def __init__(self, settings: RabbitMQSettings) -> None:
        assert settings.management_url is not None
        self._parts = urlsplit(settings.management_url.get_secret_value())
        broker = urlsplit(settings.url.get_secret_value()) if settings.url else self._parts
        self._login = _login(self._parts) or _login(broker) or "guest:guest"
        self._host = settings.virtual_host
        self._timeout = settings.connect_timeout_seconds

    @property
    def safe_url(self) -> str:
        """Where it is, without user and password."""
        host = self._parts.netloc.rpartition("@")[2]
        return f"{self._parts.scheme}://{host}{self._parts.path.rstrip('/').removesuffix('/api')}"

    async def bindings(self, exchange: str, queue: str) -> list[Binding]:
        """Of this queue to this exchange; none if there is no such thing.

        Raises TransportUnavailableError if the API cannot be reached, or does not let this user look.
        """
        path = "/".join(quote(part, safe="") for part in (self._host, "e", exchange, "q", queue))
        try:
            answer = await asyncio.to_thread(self._get, f"/api/bindings/{path}")
            return [Binding(one["routing_key"], one["arguments"]) for one in json.loads(answer)]
        except HTTPError as error:
            if error.code == 404:
                return []
            raise self._unusable(_refusal(error)) from None
        except (OSError, HTTPException) as error:
            raise self._unusable(f"cannot be reached: {getattr(error, 'reason', None) or error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._unusable("answers something else than bindings; is it the management API?") from error

    def _get(self, path: str) -> bytes:
        credentials = base64.b64encode(self._login.encode()).decode()
        request = Request(self.safe_url + path, headers={"Authorization": f"Basic {credentials}"})
        try:
            with cast(HTTPResponse, _opener().open(request, timeout=self._timeout)) as answer:
                return answer.read(LARGEST_ANSWER)
        except HTTPError as error:
            error.close()  # it is an answer, too
            raise

    def _unusable(self, why: str) -> TransportUnavailableError:
        return TransportUnavailableError(f"the management API at {self.safe_url} {why}", remedy=f"check {SETTING}")


class _NoRedirect(HTTPRedirectHandler):
    """The password is for this address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _opener() -> OpenerDirector:
    """Straight to the broker: proxies of the environment lead to the internet."""
    return build_opener(ProxyHandler({}), _NoRedirect, HTTPSHandler(context=ssl.create_default_context()))


def _login(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    return f"{unquote(parts.username)}:{unquote(parts.password or '')}"


def _refusal(error: HTTPError) -> str:
    if error.code in (401, 403):
        return f"refuses the login ({error.code}); its user needs the tag `management` and the virtual host"
    return f"answers {error.code} {error.reason}"
