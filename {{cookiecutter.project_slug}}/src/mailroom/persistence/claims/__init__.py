"""Claiming rows of the outbox: one short statement per database (contract R1)."""

from collections.abc import Callable
from datetime import datetime

from mailroom.errors import ConfigurationError
from mailroom.persistence.claims.base import Claims
from mailroom.persistence.claims.sqlite import SqliteClaims

_DIALECTS: dict[str, Callable[[Callable[[], datetime] | None], Claims]] = {"sqlite": SqliteClaims}

__all__ = ["Claims", "claims_for"]


def claims_for(kind: str, clock: Callable[[], datetime] | None = None) -> Claims:
    """The statements for this kind of database. Raises ConfigurationError for one that has none.

    They go by the database's clock; only tests give another one.
    """
    if kind not in _DIALECTS:
        known = ", ".join(sorted(_DIALECTS))
        raise ConfigurationError(f"database.url names {kind}, which this project has no outbox for; it has: {known}")
    return _DIALECTS[kind](clock)
