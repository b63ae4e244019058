"""Claiming rows of the outbox: one short statement per database (contract R1)."""

from collections.abc import Callable
from datetime import datetime
from importlib import import_module

from mailroom.persistence.claims.base import Claims

_CLASSES = {"sqlite": "SqliteClaims", "postgres": "PostgresClaims", "sqlserver": "SqlServerClaims"}

__all__ = ["Claims", "claims_for"]


def claims_for(kind: str, clock: Callable[[], datetime] | None = None) -> Claims:
    """The statements for this kind of database, which `engines` has found to be in the project.

    They go by the database's clock; only tests give another one.
    """
    claims: type[Claims] = getattr(import_module(f"{__name__}.{kind}"), _CLASSES[kind])
    return claims(clock)
