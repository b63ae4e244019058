"""Rows of the outbox as a relay sees them: claimed under a token, written back only under that token (R1, R2)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Executable, Row, Update, Uuid, bindparam, null, update

from mailroom.events import Kind
from mailroom.persistence.claims import Claims
from mailroom.persistence.database import Database
from mailroom.persistence.tables import LAST_ERROR_LENGTH, OutboxMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """One row that this relay holds until its lease runs out."""

    id: int
    token: UUID
    attempts: int
    """How many attempts failed before, a lease that ran out included."""
    row: Row[tuple[OutboxMessage]]

    @property
    def key(self) -> tuple[UUID, int]:
        """Tells two claims of one row apart."""
        return self.token, self.id

    @property
    def ordering_key(self) -> str | None:
        return self.row.ordering_key  # type: ignore[no-any-return]


class Verdict(Enum):
    """What became of a claimed row."""

    PROCESSED = "processed"
    FAILED = "failed"
    DEAD_LETTERED = "dead-lettered"
    RELEASED = "released"
    """Given back as it was: only a shutdown does that, and it costs no attempt (contract R6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """A verdict on one claimed row, with what is written beside it."""

    claimed: Claimed
    verdict: Verdict
    attempts: int = 0
    """How many attempts have failed by now; written with a failure."""
    error: str = ""
    retry_in_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Due:
    """What there is to do for one kind of event."""

    fresh: bool
    """Rows that nobody holds."""
    expired: bool
    """Rows whose relay stopped without finishing them."""


class Leases:
    """Claims rows and writes verdicts back. Every statement is short and commits at once (contract R1)."""

    def __init__(self, database: Database, *, lease_seconds: float) -> None:
        self._database = database
        self._lease_seconds = lease_seconds

    async def due(self) -> dict[Kind, Due]:
        """Asks once what there is to do, without writing."""
        async with self._database.reader() as session:
            answer = (await session.execute(self._database.claims.due())).mappings().one()
        return {
            kind: Due(fresh=bool(answer[f"{kind.value}_fresh"]), expired=bool(answer[f"{kind.value}_expired"]))
            for kind in Kind
        }

    async def claim(self, kind: Kind, limit: int) -> Sequence[Claimed]:
        """Leases up to `limit` due rows, the oldest first."""
        token = uuid4()
        statement = _claim(self._database.claims, kind, self._lease_seconds, limit)
        async with self._database.connection() as connection:
            rows = (await connection.execute(statement, {_TOKEN.key: token})).all()
        return [_claimed(row, token) for row in sorted(rows, key=lambda row: (row.available_on, row.id))]

    async def take_over(self, kind: Kind) -> Claimed | None:
        """Leases one row whose relay stopped without finishing it; that has cost the row one attempt (R6)."""
        token = uuid4()
        statement = self._database.claims.take_over(kind, token=token, lease_seconds=self._lease_seconds)
        async with self._database.connection() as connection:
            row = (await connection.execute(statement)).one_or_none()
        return None if row is None else _claimed(row, token)

    async def renew(self, tokens: Iterable[UUID]) -> None:
        """Keeps the leases under these tokens for another full period. It never waits for a write-back."""
        statement = self._database.claims.renew(tokens, lease_seconds=self._lease_seconds)
        async with self._database.connection() as connection:
            await connection.execute(statement)

    async def write_back(self, settlements: Sequence[Settlement]) -> int:
        """Writes verdicts in one transaction. Returns how many rows were lost to another relay meanwhile (R2)."""
        written = 0
        async with self._database.connection() as connection:
            for statement, parameters in self._statements(settlements):
                written += (await connection.execute(statement, parameters)).rowcount
        return len(settlements) - written

    def _statements(self, settlements: Sequence[Settlement]) -> Iterator[tuple[Update, dict[str, Any]]]:
        """One for all rows of a claim that were processed or released; one for each that failed."""
        claims = self._database.claims
        for verdict in (Verdict.PROCESSED, Verdict.RELEASED):
            for token, ids in _by_token(settlements, verdict).items():
                yield _settle(claims, verdict), {_TOKEN.key: token, "ids": ids}
        for one in settlements:
            if one.verdict is Verdict.FAILED:
                yield self._failure(one, available_on=claims.later(one.retry_in_seconds))
            elif one.verdict is Verdict.DEAD_LETTERED:
                yield self._failure(one, dead_lettered_on=claims.now())

    def _failure(self, one: Settlement, **when: Any) -> tuple[Update, dict[str, Any]]:
        statement = _unlease(self._database.claims).values(
            attempts=one.attempts, last_error=one.error[:LAST_ERROR_LENGTH], **when
        )
        return statement, {_TOKEN.key: one.claimed.token, "ids": [one.claimed.id]}


_TOKEN = bindparam("token", type_=Uuid)

# Statements are built once: that takes longer than running them.


@lru_cache(maxsize=128)
def _claim(claims: Claims, kind: Kind, lease_seconds: float, limit: int) -> Executable:
    return claims.claim(kind, token=_TOKEN, lease_seconds=lease_seconds, limit=limit)


@lru_cache
def _settle(claims: Claims, verdict: Verdict) -> Update:
    if verdict is Verdict.RELEASED:
        return _unlease(claims)
    return _unlease(claims).values(processed_on=claims.now(), last_error=null())


def _unlease(claims: Claims) -> Update:
    """The token is part of the predicate: a stale relay writes nothing (contract R2)."""
    return (
        update(OutboxMessage)
        .where(claims.among(OutboxMessage.id, "ids"), OutboxMessage.lock_token == _TOKEN)
        .values(lock_token=null(), locked_until=null())
        .execution_options(synchronize_session=False)
    )


def _claimed(row: Row[tuple[OutboxMessage]], token: UUID) -> Claimed:
    return Claimed(id=row.id, token=token, attempts=row.attempts, row=row)


def _by_token(settlements: Sequence[Settlement], verdict: Verdict) -> dict[UUID, list[int]]:
    ids: dict[UUID, list[int]] = defaultdict(list)
    for settlement in settlements:
        if settlement.verdict is verdict:
            ids[settlement.claimed.token].append(settlement.claimed.id)
    return ids
