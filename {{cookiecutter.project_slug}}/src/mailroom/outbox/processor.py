"""The relay: a lane per kind of event, one poll for all of them, and leases kept alive (ADR-100, contract R0-R7)."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from mailroom import metrics
from mailroom.backoff import backoff_seconds
from mailroom.events import Kind
from mailroom.log import get_logger
from mailroom.outbox.administration import OutboxAdministration
from mailroom.outbox.circuit import Circuit
from mailroom.outbox.gate import Gate
from mailroom.outbox.lane import Lane, Send
from mailroom.outbox.leases import Leases
from mailroom.outbox.wake_up import WakeUp
from mailroom.service import UNDOING_SECONDS, end, ended
from mailroom.settings import Settings

logger = get_logger(__name__)

RENEWALS_PER_LEASE = 3
BATCHES_IN_FLIGHT = 4
"""How many claims' worth of rows wait for a broker's confirms, or for the write-back after them."""
BATCHES_HANDLED_HERE = 2
"""How many where handlers run in this process: one is handled while the next one is claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where the events of one kind go (contract R0)."""

    send: Send
    slots: AbstractAsyncContextManager[Any]
    """Bounds how many are in flight at once; shared by routes that draw on the same resources."""
    is_handled_here: bool
    """Handlers run in this process, so a message may bring it down (contract R6)."""


class OutboxProcessor:
    """Sends what is stored. Any number of processes may run one on the same database (contract R1).

    It wakes up on a commit in this process, and in others where the database has a channel for that (see `wake_up`);
    otherwise it asks the database once per `outbox.polling_interval_seconds`.
    """

    def __init__(
        self,
        leases: Leases,
        routes: Mapping[Kind, Route],
        settings: Settings,
        administration: OutboxAdministration,
        wake_up: WakeUp,
        handled_here: Gate,
        *,
        name: str = "OutboxProcessor",
    ) -> None:
        """`handled_here` is shared by all relays of a process: a row that may bring it down is handled alone (R6)."""
        self.name = name
        self._leases = leases
        self._administration = administration
        self._wake_up = wake_up
        self._backlog = metrics.Backlog()
        self._settings = settings
        self._lanes = {
            kind: Lane(
                kind,
                route.send,
                leases,
                outbox=settings.outbox,
                circuit=Circuit(
                    min_pause_seconds=settings.message_bus.retry_min_interval_seconds,
                    max_pause_seconds=settings.message_bus.retry_max_interval_seconds,
                ),
                slots=route.slots,
                gate=handled_here if route.is_handled_here else Gate(),
                batches=BATCHES_HANDLED_HERE if route.is_handled_here else BATCHES_IN_FLIGHT,
            )
            for kind, route in routes.items()
        }
        self._runners: list[asyncio.Task[None]] = []
        self._helpers: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    def wake(self, kinds: Iterable[Kind]) -> None:
        """Something of these kinds was committed; the relay looks at once instead of at the next poll (R7)."""
        for kind in kinds:
            self._lanes[kind].wake()

    @property
    def is_running(self) -> bool:
        """Whether it has been started, and not been stopped."""
        return bool(self._runners)

    async def start(self) -> None:
        self._stopping.clear()
        self._backlog.start()
        await self._wake_up.start()
        self._runners = [
            asyncio.create_task(self._run(lane), name=f"outbox {lane.kind}") for lane in self._lanes.values()
        ]
        self._helpers = [
            asyncio.create_task(self._poll(), name="outbox poll"),
            asyncio.create_task(self._renew(), name="outbox renewal"),
        ]

    async def stop(self) -> None:
        """Finishes and stamps what is in flight within `shutdown_timeout_seconds`, releases the rest (R6)."""
        self._stopping.set()
        self._backlog.stop()
        deadline = asyncio.get_running_loop().time() + self._settings.shutdown_timeout_seconds
        try:
            results = await asyncio.gather(
                *(lane.stop(deadline) for lane in self._lanes.values()),
                *self._runners,
                self._wake_up.stop(),  # beside the lanes, which claim nothing more from this moment on
                return_exceptions=True,
            )
        finally:
            await end(self._helpers, again_seconds=UNDOING_SECONDS)
        for result in results:
            if isinstance(result, Exception):
                logger.error("outbox could not write back while stopping; its leases will run out", exc_info=result)
        self._runners, self._helpers = [], []

    def failure(self) -> str | None:
        """Which of its tasks ended although nobody stopped it (contract A2). What fails is tried again in them."""
        return ended([*self._runners, *self._helpers, *(lane.background for lane in self._lanes.values())])

    async def drain(self, progress: Callable[[int], None] = lambda count: None) -> int:
        """Sends what is due until nothing is, without having been started. Returns how many rows it claimed.

        What failed meanwhile waits for its next try and is not waited for.
        """
        renewal = asyncio.create_task(self._renew())
        total = 0
        try:
            while claimed := await self._run_once():
                total += claimed
                progress(total)
        finally:
            deadline = asyncio.get_running_loop().time() + self._settings.shutdown_timeout_seconds
            await asyncio.gather(*(lane.stop(deadline) for lane in self._lanes.values()))
            await end([renewal], again_seconds=UNDOING_SECONDS)
        return total

    async def _run_once(self) -> int:
        await self._ask()
        return sum(await asyncio.gather(*(lane.work() for lane in self._lanes.values())))

    async def _ask(self) -> None:
        due = await self._leases.due()
        for kind, lane in self._lanes.items():
            lane.tell(due[kind])

    async def _measure(self) -> None:
        stats = await self._administration.stats()
        self._backlog.update(stats.pending, stats.oldest_pending_seconds)

    async def _run(self, lane: Lane) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                await lane.work()
                failures = 0
            except Exception:
                failures += 1
                logger.exception("outbox relay failed, trying again", kind=lane.kind.value)
                await lane.pause(backoff_seconds(failures, base=0.5, cap=30))
                continue
            if not self._stopping.is_set():
                await lane.wait()

    async def _poll(self) -> None:
        failures = 0
        while True:
            try:
                await self._ask()
                if self._backlog.is_wanted:
                    await self._measure()
                failures = 0
            except Exception:
                failures += 1
                log = logger.warning if failures == 1 else logger.debug
                log("outbox poll failed, trying again", exc_info=True)
            await asyncio.sleep(self._settings.outbox.polling_interval_seconds)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._settings.outbox.lease_seconds / RENEWALS_PER_LEASE)
            tokens = set().union(*(lane.tokens for lane in self._lanes.values()))
            if not tokens:
                continue
            try:
                await self._leases.renew(tokens)
            except Exception:
                logger.warning("outbox leases could not be renewed, trying again", exc_info=True)
