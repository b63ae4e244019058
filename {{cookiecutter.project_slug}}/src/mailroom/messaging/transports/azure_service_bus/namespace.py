"""The namespace and the clients that talk to it (contract R4).

A connection string has a key in it; with a namespace's name alone, Azure says who this is (DefaultAzureCredential).
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus import ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from mailroom.errors import NotAllowedError, TransportUnavailableError
from mailroom.messaging.transports.azure_service_bus.refusals import describe
from mailroom.settings import ServiceBusSettings

RETRIES: dict[str, Any] = {"retry_total": 1, "retry_backoff_factor": 0.05}
"""The client tries once more by itself: the service detaches links that were idle. All else is up to the caller."""
EMULATOR_PORT = 5300


class Namespace:
    """Where events are exchanged. It has no connection of its own: each sender and receiver has one."""

    def __init__(self, settings: ServiceBusSettings) -> None:
        self.host = settings.host
        self._settings = settings
        self._client: ServiceBusClient | None = None
        self._credential: AsyncTokenCredential | None = None

    def sender(self, entity: str, *, is_topic: bool) -> ServiceBusSender:
        client = self._service()
        return client.get_topic_sender(entity) if is_topic else client.get_queue_sender(entity)

    def receiver(self, queue: str, *, of_dead_letters: bool = False) -> ServiceBusReceiver:
        """Takes messages with a lock on each, and none ahead of what it is asked for."""
        return self._service().get_queue_receiver(
            queue,
            sub_queue=ServiceBusSubQueue.DEAD_LETTER if of_dead_letters else None,
            receive_mode=ServiceBusReceiveMode.PEEK_LOCK,
        )

    @asynccontextmanager
    async def administration(self) -> AsyncIterator[ServiceBusAdministrationClient]:
        """For topics, queues, subscriptions and rules.

        Raises TransportUnavailableError if it cannot be reached, NotAllowedError if this identity may not manage.
        """
        try:
            async with self._administration() as client:
                yield client
        except ClientAuthenticationError as error:
            raise self._not_allowed(error) from error
        except HttpResponseError as error:
            if error.status_code in (401, 403):
                raise self._not_allowed(error) from error
            raise TransportUnavailableError(f"the management of {self.host} answers: {describe(error)}") from error
        except AzureError as error:
            raise TransportUnavailableError(
                f"the management of {self.host} cannot be reached: {describe(error)}",
                remedy="start the emulator (docker compose up -d --wait), or check service_bus.connection_string, "
                ".namespace or .management_url",
            ) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        credential, self._credential = self._credential, None
        if client is not None:
            await client.close()
        if credential is not None:
            await credential.close()

    def _service(self) -> ServiceBusClient:
        if self._client is None:
            limits = {**RETRIES, "try_timeout": self._settings.connect_timeout_seconds}
            if self._settings.connection_string is not None:
                given = self._settings.connection_string.get_secret_value()
                self._client = ServiceBusClient.from_connection_string(given, **limits)
            else:
                self._client = ServiceBusClient(self.host, self._identity(), **limits)
        return self._client

    def _administration(self) -> ServiceBusAdministrationClient:
        limits: dict[str, Any] = {"retry_total": 1, "connection_timeout": self._settings.connect_timeout_seconds}
        if self._settings.connection_string is None:
            return ServiceBusAdministrationClient(self.host, self._identity(), **limits)
        given = self._settings.connection_string.get_secret_value()
        if self._settings.is_emulator:
            limits["transport"] = _OverHttp(self._settings.management_url or self._emulator())
        return ServiceBusAdministrationClient.from_connection_string(given, **limits)

    def _emulator(self) -> str:
        host = urlsplit(f"//{self.host}").hostname or "127.0.0.1"
        return f"http://{f'[{host}]' if ':' in host else host}:{EMULATOR_PORT}"

    def _identity(self) -> AsyncTokenCredential:
        if self._credential is None:
            from azure.identity.aio import DefaultAzureCredential  # takes a while, and a key needs none of it

            self._credential = DefaultAzureCredential()
        return self._credential

    def _not_allowed(self, error: AzureError) -> NotAllowedError:
        return NotAllowedError(
            f"{self.host} does not let this identity manage topics, queues and rules: {describe(error)}",
            remedy="grant it the claim Manage, or the role Azure Service Bus Data Owner; or let an operator make what "
            "`topology export` prints, and set service_bus.declare_topology = false",
        )


class _OverHttp(AioHttpTransport):  # type: ignore[misc]
    """The administration client speaks https alone, and an emulator http alone."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._to = urlsplit(url)

    async def send(self, request: Any, **how: Any) -> Any:
        there = urlsplit(request.url)._replace(scheme=self._to.scheme, netloc=self._to.netloc)
        request.url = urlunsplit(there)
        return await super().send(request, **how)
