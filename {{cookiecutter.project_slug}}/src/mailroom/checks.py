"""What was looked at for an operator, and what it came to; `doctor` prints it (contract A1)."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """What a check came to."""

    OK = "ok"
    TO_DO = "to do"
    """Something waits for the operator."""
    WRONG = "wrong"
    """The settings cannot work: nothing starts with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    found: str
    remedy: str | None = None
    """What to do; None where all is well, or where `found` is a message about the settings, which says it."""
