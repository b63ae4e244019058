"""One kind of event on its way out: claim, send many at once, write the verdicts back (contract R0-R6).

Rows flow through a window instead of batch after batch, so a slow message delays no other: while some are being
sent, the next are claimed, and whatever has finished since the last write is stamped in one statement.

    claim ─► held ─► sending (at most `concurrency`) ─► finished ─► write back
               │            │
               │            └─ no broker: released, and after a pause one row alone tries whether it is back
               └─ stop: released as it was
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

from mailroom import metrics
from mailroom.backoff import backoff_seconds
from mailroom.envelope import Message
from mailroom.errors import Reject, TransportUnavailableError, UndecodableError
from mailroom.events import Kind
from mailroom.log import get_logger
from mailroom.outbox.circuit import Circuit
from mailroom.outbox.gate import Gate
from mailroom.outbox.leases import Claimed, Due, Leases, Settlement, Verdict
from mailroom.outbox.write_back import WriteBack
from mailroom.outbox.writer import message_of
from mailroom.service import UNDOING_SECONDS, end, is_being_cancelled
from mailroom.settings import OutboxSettings

logger = get_logger(__name__)

Send = Callable[[Message, int], Awaitable[object]]
"""Sends a message for the n-th time, and returns once it was taken over or handled."""

CRASHED = "the relay that held this message stopped without finishing it (killed, or cut off from the database)"


class Lane:
    """Relays one kind of event. `work` runs until nothing is due; whoever calls it again decides when."""

    def __init__(
        self,
        kind: Kind,
        send: Send,
        leases: Leases,
        *,
        outbox: OutboxSettings,
        circuit: Circuit,
        slots: AbstractAsyncContextManager[Any],
        gate: Gate,
        batches: int,
    ) -> None:
        """`batches` is how many claims' worth of rows may be held at once."""
        self.kind = kind
        self._send = send
        self._leases = leases
        self._outbox = outbox
        self._circuit = circuit
        self._gate = gate
        self._slots = slots
        self._window = batches * outbox.batch_size
        self._held: dict[tuple[UUID, int], Claimed] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._write_back = WriteBack(leases, self._held, self._settled)
        self._has_fresh = False
        self._has_expired = False
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._working = asyncio.Lock()

    def wake(self) -> None:
        """Something new may be due."""
        self._has_fresh = True
        self._changed.set()

    def tell(self, due: Due) -> None:
        """Passes on what a poll found."""
        self._has_fresh |= due.fresh
        self._has_expired |= due.expired
        if due.fresh or due.expired:
            self._changed.set()

    @property
    def tokens(self) -> set[UUID]:
        """The leases that must be kept alive."""
        return {claimed.token for claimed in self._held.values()}

    @property
    def background(self) -> "asyncio.Task[None] | None":
        """What has to run for as long as the lane works; None before its first work."""
        return self._write_back.task

    async def wait(self) -> None:
        """Returns when there may be something to do."""
        await self._changed.wait()

    async def work(self) -> int:
        """Claims and sends until nothing more is due and nothing is in flight. Returns how many rows it claimed."""
        async with self._working:
            return await self._work()

    async def _work(self) -> int:
        self._write_back.start()
        claimed = 0
        while not self._stopping.is_set():
            self._changed.clear()
            free = self._window - len(self._held)
            if self._circuit.is_open:
                await self._sit_out()
            elif self._circuit.is_half_open and self._held:
                await self._changed.wait()
            elif self._has_expired:
                claimed += await self._take_over()
            elif self._has_fresh and self._circuit.is_half_open:
                claimed += await self._claim(1)
            elif self._has_fresh and free * 2 >= self._outbox.batch_size:
                claimed += await self._claim(min(free, self._outbox.batch_size))
            elif self._held:
                await self._changed.wait()
            else:
                break
        return claimed

    async def stop(self, deadline: float) -> None:
        """Stops claiming, finishes what is being sent until `deadline` (loop time), releases the rest (R6)."""
        self._stopping.set()
        self._changed.set()
        self._gate.look_again()
        if self._sending:
            await asyncio.wait(self._sending, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        for task in self._sending:
            task.cancel()
        async with self._working:
            try:
                await end(self._sending, again_seconds=UNDOING_SECONDS, are_told=True)
                await self._write_back.stop()
            finally:
                self._stopping.clear()

    async def _claim(self, limit: int) -> int:
        self._has_fresh = False
        await self._gate.enter()
        try:
            rows = await self._leases.claim(self.kind, limit)
            self._gate.add(len(rows))
            for claimed in rows:
                self._launch(claimed)
        except BaseException:
            self._has_fresh = True
            raise
        finally:
            self._gate.leave()
        if len(rows) == limit:
            self._has_fresh = True
        return len(rows)

    async def _take_over(self) -> int:
        async with self._gate.alone(unless=self._stopping.is_set):
            claimed = None if self._stopping.is_set() else await self._leases.take_over(self.kind)
            if claimed is None:
                self._has_expired = False
                return 0
            logger.warning("lease expired", **_facts(claimed), attempts=claimed.attempts, reason=CRASHED)
            self._gate.add(1)
            if claimed.attempts >= self._outbox.max_attempts:
                self._held[claimed.key] = claimed
                self._write_back.add(_dead_letter(claimed, claimed.attempts, CRASHED))
            else:
                self._launch(claimed)
            while claimed.key in self._held and not self._stopping.is_set():
                self._changed.clear()
                await self._changed.wait()
        return 1

    def _launch(self, claimed: Claimed) -> None:
        self._held[claimed.key] = claimed
        task = asyncio.create_task(self._send_one(claimed), name=f"outbox row {claimed.id}")
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_one(self, claimed: Claimed) -> None:
        try:
            async with self._slots:
                settlement = await self._attempt(claimed)
        except asyncio.CancelledError:
            settlement = _release(claimed)
        self._write_back.add(settlement)

    async def _attempt(self, claimed: Claimed) -> Settlement:
        """One try. Raises CancelledError only when the relay itself is stopping."""
        if self._stopping.is_set():
            return _release(claimed)
        try:
            await self._send(message_of(claimed.row), claimed.attempts + 1)
        except TransportUnavailableError as error:
            is_its_fault = self._circuit.fail(claimed.id, error)
            return self._failure(claimed, error) if is_its_fault else _release(claimed)
        except (Reject, UndecodableError) as error:
            return _dead_letter(claimed, claimed.attempts + 1, _reason(error))
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            return self._failure(claimed, error)
        except Exception as error:
            return self._failure(claimed, error)
        self._circuit.succeed()
        return Settlement(claimed=claimed, verdict=Verdict.PROCESSED)

    def _failure(self, claimed: Claimed, error: BaseException) -> Settlement:
        attempts = claimed.attempts + 1
        if attempts >= self._outbox.max_attempts:
            return _dead_letter(claimed, attempts, _reason(error))
        delay = backoff_seconds(attempts, base=self._outbox.backoff_base_seconds, cap=self._outbox.backoff_max_seconds)
        return Settlement(
            claimed=claimed, verdict=Verdict.FAILED, attempts=attempts, error=_reason(error), retry_in_seconds=delay
        )

    async def _sit_out(self) -> None:
        """Waits until nothing is in flight, and then for the broker. Nothing is held meanwhile (R4)."""
        while self._held and not self._stopping.is_set():
            await self._changed.wait()
            self._changed.clear()
        await self.pause(self._circuit.next_pause_seconds())
        self._circuit.half_open()
        self._has_fresh = True

    async def pause(self, seconds: float) -> None:
        """Waits, but not beyond the stop."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _settled(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            _report(settlement)
            claimed = settlement.claimed
            self._held.pop(claimed.key, None)
            if settlement.verdict is not Verdict.RELEASED:
                self._circuit.acquit(claimed.id)
            if claimed.ordering_key is not None:
                self._has_fresh = True
        self._gate.leave(len(settlements))
        self._changed.set()


def _release(claimed: Claimed) -> Settlement:
    return Settlement(claimed=claimed, verdict=Verdict.RELEASED)


def _dead_letter(claimed: Claimed, attempts: int, reason: str) -> Settlement:
    return Settlement(claimed=claimed, verdict=Verdict.DEAD_LETTERED, attempts=attempts, error=reason)


def _reason(error: BaseException) -> str:
    """In words that every database stores, whatever the error says: else the verdict could never be written."""
    try:
        text = str(error)
    except Exception as unreadable:
        text = f"its message cannot be read ({type(unreadable).__name__})"
    return f"{type(error).__name__}: {text}".encode(errors="backslashreplace").decode().replace("\0", r"\x00")


def _facts(claimed: Claimed) -> dict[str, str]:
    return {"message_id": str(claimed.row.message_id), "event_type": claimed.row.event_type}


def _report(settlement: Settlement) -> None:
    metrics.relayed(settlement.claimed.row.kind, settlement.claimed.row.event_type, settlement.verdict.value)
    if settlement.verdict is Verdict.FAILED:
        logger.warning(
            "message failed, will be retried",
            **_facts(settlement.claimed),
            attempt=settlement.attempts,
            retry_in_seconds=round(settlement.retry_in_seconds, 1),
            reason=settlement.error,
        )
    elif settlement.verdict is Verdict.DEAD_LETTERED:
        logger.error(
            "message dead-lettered", **_facts(settlement.claimed), attempt=settlement.attempts, reason=settlement.error
        )
