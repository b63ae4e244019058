"""What versions of mailroom changed in its tables since 0001, step by step (contract T4).

0001 never changes, and a project's own migrations follow it. So a version that changes the tables adds a step here, and
`db revision --framework` writes a migration of the project that takes it, after those that are there already.

A step is frozen like a migration: it spells out its types and imports nothing of mailroom.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mailroom.errors import SchemaError


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change of the tables. `upgrade` and `downgrade` work with `alembic.op`, inside a migration."""

    number: int
    what: str
    """In a few words, such as "add the origin of a message": they name the migration."""
    upgrade: Callable[[], None]
    downgrade: Callable[[], None]

    @property
    def revision(self) -> str:
        """The id of the migration that takes it, in every project and every data source."""
        return f"mailroom_{self.number}"


STEPS: tuple[Step, ...] = ()
"""In order, from 2 on; 0001 is the first. No version has changed the tables yet."""


def upgrade(number: int) -> None:
    """Take a step; called by a migration."""
    _step(number).upgrade()


def downgrade(number: int) -> None:
    """Take a step back; called by a migration."""
    _step(number).downgrade()


def _step(number: int) -> Step:
    for step in STEPS:
        if step.number == number:
            return step
    raise SchemaError(
        f"a migration takes step {number} of mailroom's tables, which this mailroom does not know",
        remedy="use the version of mailroom that the migration was written with, or a newer one",
    )
