"""The double from the side of a test: starts its process, tells it what to do, and stops it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener
from uuid import uuid4

from azure.servicebus.aio.management import ServiceBusAdministrationClient

from .over_http import OverHttp

KEY_NAME = "RootManageSharedAccessKey"
TESTS = Path(__file__).parents[1]
TIMEOUT_SECONDS = 30

_open = build_opener(ProxyHandler({})).open


class RefusedError(Exception):
    """The double does not know the entity, or not the command."""


class Double:
    """A double that runs. Its methods do not wait for a client to notice."""

    def __init__(self, ports: dict[str, int], secret: str) -> None:
        self.ports = ports
        self.secret = secret

    @property
    def connection_string(self) -> str:
        return self.connection_string_with(self.secret)

    def connection_string_with(self, secret: str) -> str:
        """As a client would have it whose key is another one."""
        return (
            f"Endpoint=sb://127.0.0.1:{self.ports['amqp']};SharedAccessKeyName={KEY_NAME};"
            f"SharedAccessKey={secret};UseDevelopmentEmulator=true"
        )

    @property
    def variables(self) -> dict[str, str]:
        """What makes a service use it."""
        return {
            "SERVICE_BUS__CONNECTION_STRING": self.connection_string,
            "SERVICE_BUS__MANAGEMENT_URL": f"http://127.0.0.1:{self.ports['administration']}",
        }

    @property
    def variables_of_tests(self) -> dict[str, str]:
        """What makes the framework's tests use it."""
        return {f"TEST_SERVICEBUS_{name.partition('__')[2]}": value for name, value in self.variables.items()}

    def administration(self, connection_string: str | None = None) -> ServiceBusAdministrationClient:
        """The real client, on this double; to be used in `async with`."""
        transport = OverHttp(self.ports["administration"])
        given = connection_string or self.connection_string
        return ServiceBusAdministrationClient.from_connection_string(given, transport=transport, retry_total=0)

    def drop_connections(self) -> int:
        """Breaks off every connection. Returns how many there were."""
        return int(self._tell("drop_connections"))

    def refuse_connections(self, refuses: bool = True) -> None:
        """From now on new connections are broken off; or, with False, no more."""
        self._tell("refuse_connections", refuses=refuses)

    def refuse(
        self, condition: str, *, entity: str | None = None, times: int = 1, description: str = "It was refused."
    ) -> None:
        """The next sends, to this entity or to any, are rejected with this condition. A batch counts as one."""
        self._tell("refuse", condition=condition, description=description, entity=entity, times=times)

    def throttle(self, seconds: float) -> None:
        """Sends and requests are answered with `com.microsoft:server-busy` for so long; 0 ends it."""
        self._tell("throttle", seconds=seconds)

    def clear_faults(self) -> None:
        """Refuses and throttles nothing any more."""
        self._tell("clear_faults")

    def expire_locks(self, entity: str | None = None) -> int:
        """Every lock, of this entity or of all, runs out now. Returns how many there were."""
        return int(self._tell("expire_locks", path=entity))

    def stop(self) -> None:
        """Listens no more, breaks off every connection and loses every lock. It keeps its messages."""
        self._tell("stop")

    def start(self) -> None:
        """Listens again, where it did before."""
        self._tell("start")

    def restart(self, seconds: float = 0) -> None:
        """Stops, and starts again after so many seconds."""
        self._tell("restart", seconds=seconds)

    def held(self, entity: str) -> dict[str, Any]:
        """Counts (active, locked, deferred, scheduled, returned, dead_letters), and `messages`, the oldest first.

        What is locked or deferred is active, too, as the service counts. Raises RefusedError for an unknown entity.
        """
        return dict(self._tell("held", entity=entity))

    def empty(self, entity: str) -> None:
        """Removes every message, those of the dead-letter sub-queue too. Raises RefusedError for an unknown entity."""
        self._tell("empty", entity=entity)

    def reset(self) -> None:
        """As if it had just been started: no entities, no connections, no faults."""
        self._tell("reset")

    def state(self) -> dict[str, Any]:
        """`connections` now, those `accepted` so far, and the names of `queues` and `topics`."""
        return dict(self._tell("state"))

    def _tell(self, command: str, **arguments: Any) -> Any:
        told = json.dumps({"command": command, **arguments}).encode()
        url = f"http://127.0.0.1:{self.ports['control']}/"
        try:
            with _open(Request(url, told), timeout=TIMEOUT_SECONDS) as response:
                return json.load(response)["result"]
        except HTTPError as error:
            with error:
                raise RefusedError(json.load(error)["error"]) from None


@contextmanager
def servicebus() -> Iterator[Double]:
    """A double with no entities. It is gone at the end, with everything in it."""
    secret = uuid4().hex
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", "servicebus", KEY_NAME, secret],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the double did not start: it ended with {process.wait()}")
        try:
            yield Double(json.loads(line), secret)
        finally:
            process.stdin.close()
            try:
                process.wait(TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
