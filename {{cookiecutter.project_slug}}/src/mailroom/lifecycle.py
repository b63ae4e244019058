"""From the start of a host to its end: services start one after another, and stop the other way round (contract A3)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum

from mailroom.service import Service


class Phase(StrEnum):
    """Where a host is in its life."""

    NOT_STARTED = "not started"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Lifecycle:
    """Knows at any time what phase a host is in, and which of its services should run."""

    def __init__(self) -> None:
        self.phase = Phase.NOT_STARTED
        self.running: list[Service] = []
        """Those that were started, until the first of them is stopped."""

    @asynccontextmanager
    async def through(self, services: Sequence[Service]) -> AsyncIterator[None]:
        """Runs the services for the length of the block. One that cannot start stops those before it.

        One that cannot stop keeps no other from being stopped; what it raised comes out at the end.
        """
        self._enter(Phase.STARTING)
        async with AsyncExitStack() as stops:
            stops.callback(self._enter, Phase.STOPPED)
            try:
                for service in services:
                    stops.push_async_callback(service.stop)
                    await service.start()
                    self.running.append(service)
                self._enter(Phase.RUNNING)
                yield
            finally:
                self._enter(Phase.STOPPING)
                self.running.clear()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
