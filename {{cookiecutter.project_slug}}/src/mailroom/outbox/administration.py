"""Repairing the outbox by hand; a row that a relay holds is never touched (contract A1)."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, update

from mailroom.outbox.inspection import OutboxInspection
from mailroom.outbox.selection import State, is_in
from mailroom.persistence.tables import OutboxMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What became of a replay."""

    replayed: Sequence[int]
    leased: Sequence[int]
    """Held by a relay, and left alone."""
    missing: Sequence[int]


class OutboxAdministration(OutboxInspection):
    """The handles of an operator on one data source: what can be seen, and what can be changed."""

    async def dead_letter_ids(self) -> list[int]:
        """All that a replay of dead letters would send again, the oldest first."""
        statement = select(OutboxMessage.id).where(is_in(State.DEAD_LETTERED)).order_by(OutboxMessage.id)
        async with self._database.reader() as session:
            return list((await session.scalars(statement)).all())

    async def replay(self, ids: Sequence[int]) -> Replayed:
        """Makes rows due now, with all their attempts before them. Rows that a relay holds are left alone (F17).

        The message id stays, so where the inbox already knows it, its handlers do not run again.
        """
        again = (
            update(OutboxMessage)
            .where(OutboxMessage.id.in_(ids), OutboxMessage.lock_token.is_(None))
            .values(available_on=self._database.claims.now(), attempts=0, processed_on=None, dead_lettered_on=None)
            .returning(OutboxMessage.id)
        )
        async with self._database.connection() as connection:
            replayed = set((await connection.execute(again)).scalars().all())
            left = select(OutboxMessage.id).where(OutboxMessage.id.in_(ids))
            existing = set((await connection.execute(left)).scalars().all())
        return Replayed(
            replayed=sorted(replayed),
            leased=sorted(existing - replayed),
            missing=sorted(set(ids) - existing),
        )
