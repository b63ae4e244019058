"""From the start of a host to its end: services start one after another, and stop the other way round (contract A3)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
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
        """Runs the services for the length of the block. One that cannot start stops those before it."""
        started: list[Service] = []
        self.phase = Phase.STARTING
        try:
            for service in services:
                started.append(service)
                await service.start()
                self.running.append(service)
            self.phase = Phase.RUNNING
            yield
        finally:
            self.phase = Phase.STOPPING
            self.running.clear()
            for service in reversed(started):
                await service.stop()
            self.phase = Phase.STOPPED
