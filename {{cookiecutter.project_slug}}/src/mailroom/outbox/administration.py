"""Repairing the outbox by hand, batch by batch; a row that a relay holds is never touched (contract A1)."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Delete, Select, Update, delete, func, or_, select, update

from mailroom.outbox.inspection import OutboxInspection
from mailroom.outbox.selection import Selection, State
from mailroom.persistence.tables import OutboxMessage

BATCH_SIZE = 1_000

Progress = Callable[[int], None]
"""Told after each batch how many rows are done. What it raises ends the work; finished batches stay done."""


def ignore(_done: int) -> None:
    """The progress of nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """What became of the selected rows."""

    rows: int
    """How many were changed."""
    held: tuple[int, ...]
    """Held by a relay when their turn came, and left alone."""
    missing: tuple[int, ...]
    """Ids that were asked for and are not there."""


class OutboxAdministration(OutboxInspection):
    """The handles of an operator on one data source: what can be seen, and what can be changed.

    Every batch commits at once, so that relays and producers go on beside long work, and what was done stays done.
    """

    async def replay(self, selection: Selection, progress: Progress = ignore) -> Changed:
        """Makes rows due now, with all their attempts before them; rows that a relay holds are left alone (F17).

        The message id stays, so where the inbox already knows it, its handlers do not run again.
        """
        again = update(OutboxMessage).values(
            available_on=self._database.claims.now(), attempts=0, processed_on=None, dead_lettered_on=None
        )
        return await self._change(again, selection, progress)

    async def discard(self, selection: Selection, progress: Progress = ignore) -> Changed:
        """Deletes rows for good; rows that a relay holds are left alone. What was pending is never sent."""
        return await self._change(delete(OutboxMessage), selection, progress)

    async def purge(self, older_than: timedelta, *, dead_letters: bool = False, progress: Progress = ignore) -> int:
        """Deletes rows that were processed longer ago, and dead letters only if told to. Returns how many."""
        condition = self._purgeable(older_than, dead_letters=dead_letters)
        done = 0
        async for batch in self._batches([condition]):
            async with self._database.connection() as connection:
                gone = delete(OutboxMessage).where(OutboxMessage.id.in_(self._free(batch, condition)))
                done += (await connection.execute(gone)).rowcount
            progress(done)
        return done

    async def purgeable(self, older_than: timedelta, *, dead_letters: bool = False) -> int:
        """How many rows `purge` would delete now."""
        condition = self._purgeable(older_than, dead_letters=dead_letters)
        async with self._database.reader() as session:
            statement = select(func.count()).select_from(OutboxMessage).where(condition)
            return (await session.execute(statement)).scalar_one()

    async def held(self, selection: Selection) -> tuple[int, ...]:
        """The rows that would be selected if no relay held them."""
        if selection.state not in (None, State.PENDING, State.LEASED):
            return ()
        return tuple(await self._ids(replace(selection, state=State.LEASED)))

    async def missing(self, selection: Selection) -> tuple[int, ...]:
        """The ids of the selection that are not there."""
        if selection.ids is None:
            return ()
        return tuple(sorted(set(selection.ids) - set(await self._ids(Selection(ids=selection.ids)))))

    async def _change(self, statement: Update | Delete, selection: Selection, progress: Progress) -> Changed:
        """A row is tested again when it is changed: since it was found, a relay may have claimed it.

        And one that was replayed may be claimed at once, so who is held is never asked afterwards.
        """
        missing, held, done = await self.missing(selection), set(await self.held(selection)), 0
        free = OutboxMessage.lock_token.is_(None)
        for conditions in self.conditions(selection):
            async for batch in self._batches([*conditions, free]):
                changing: Any = statement.where(OutboxMessage.id.in_(self._free(batch, *conditions, free)), free)
                async with self._database.connection() as connection:
                    changed = set((await connection.execute(changing.returning(OutboxMessage.id))).scalars().all())
                held = (held | set(batch)) - changed
                done += len(changed)
                progress(done)
        return Changed(rows=done, held=tuple(sorted(held)), missing=missing)

    def _free(self, batch: list[int], *conditions: ColumnElement[bool]) -> Select[Any]:
        """Those of a batch that still meet the conditions and are not being written by somebody else."""
        still = select(OutboxMessage.id).where(OutboxMessage.id.in_(batch), *conditions)
        return self._database.claims.free(still, OutboxMessage)

    async def _batches(self, conditions: list[ColumnElement[bool]]) -> AsyncIterator[list[int]]:
        """Ids in order, each once: a row that comes back while the work goes on is not met again."""
        last, newest = 0, select(func.max(OutboxMessage.id))
        async with self._database.reader() as session:
            end = (await session.execute(newest)).scalar_one() or 0
        while True:
            found = (
                select(OutboxMessage.id)
                .where(*conditions, OutboxMessage.id > last, OutboxMessage.id <= end)
                .order_by(OutboxMessage.id)
                .limit(BATCH_SIZE)
            )
            async with self._database.reader() as session:
                batch = list((await session.scalars(found)).all())
            if not batch:
                return
            yield batch
            last = batch[-1]

    async def _ids(self, selection: Selection) -> list[int]:
        found: list[int] = []
        async with self._database.reader() as session:
            for conditions in self.conditions(selection):
                found += (await session.scalars(select(OutboxMessage.id).where(*conditions))).all()
        return sorted(found)

    def _purgeable(self, older_than: timedelta, *, dead_letters: bool) -> ColumnElement[bool]:
        before = self._database.claims.later(-older_than.total_seconds())
        row = OutboxMessage
        processed = row.processed_on < before
        return or_(processed, row.dead_lettered_on < before) if dead_letters else processed
