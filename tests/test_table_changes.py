"""A version that changes the tables: one command, and nothing starts before it."""

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from checkout import PROJECT, Render, run, succeed
from updating import (
    NEXT,
    UPDATE,
    Copier,
    append,
    changed,
    environment,
    handle_events,
    release,
    replace,
    shop,
    shop_says,
    store_an_event,
    under_git,
)

STEP = """

def _add_origin() -> None:
    op.add_column("outbox_messages", sa.Column("origin", sa.Unicode(50)))


def _drop_origin() -> None:
    op.drop_column("outbox_messages", "origin")


STEPS = (Step(number=2, what="add origin", upgrade=_add_origin, downgrade=_drop_origin),)
"""
TAKEN = '''"""Add origin.

Revision ID: mailroom_2
Revises: 0001
"""

from mailroom.persistence import steps

revision: str = "mailroom_2"
down_revision: str | None = "0001"


def upgrade() -> None:
    steps.upgrade(2)


def downgrade() -> None:
    steps.downgrade(2)
'''


def add_a_column(template: Path) -> None:
    """As NEXT: a framework that has a column more, with the step to it, which a new project has taken at its birth."""
    inner = template / PROJECT.name
    last = "    dead_lettered_on: Mapped[datetime | None] = mapped_column(UtcDateTime)\n"
    edits = {
        "src/mailroom/persistence/tables.py": (
            last,
            f"{last}    origin: Mapped[str | None] = mapped_column(Unicode(50))\n",
        ),
        "src/mailroom/persistence/steps.py": (
            "from mailroom.errors",
            "import sqlalchemy as sa\nfrom alembic import op\n\nfrom mailroom.errors",
        ),
        "migrations/versions/0002_orders.py": ('| None = "0001"', '| None = "mailroom_2"'),
    }
    replace(inner, edits)
    append(inner, ["src/mailroom/persistence/steps.py"], STEP)
    (inner / "migrations/versions/mailroom_2_add_origin.py").write_text(TAKEN, encoding="utf-8")
    release(template, NEXT)


def columns(database: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT name, type, dflt_value FROM pragma_table_info('outbox_messages')").fetchall()


def test_a_version_that_changes_the_tables_is_one_command_and_nothing_starts_before_it(
    template: Path, by_copier: Render, own_shop: Path, copier: Copier, tmp_path: Path
) -> None:
    """Old databases, new ones of the old project, and those of a new project end up the same."""
    newer = Path(shutil.copytree(template, tmp_path / "template"))
    add_a_column(newer)
    replace(own_shop, {".copier-answers.yml": (f"'{template}'", f"'{newer}'")})
    shop(own_shop, "db", "upgrade")
    store_an_event(own_shop)
    copier(*UPDATE, under_git(own_shop), cwd=tmp_path)
    assert not any(name.startswith("migrations/") for name in changed(own_shop))

    todo = "run: shop db revision --framework, then shop db upgrade"
    for command in ("run", "doctor"):
        refused = shop_says(own_shop, command)
        assert refused.returncode == 1
        assert todo in refused.stdout
    assert f"mailroom {NEXT[1:]} " in refused.stdout
    says_so = "test_the_migrations_of_this_project_take_every_step_of_mailroom"
    tests = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/mailroom/test_schema.py", "-k")
    assert run(*tests, says_so, cwd=own_shop, env=environment(own_shop)).returncode == 1

    shop(own_shop, "db", "revision", "--framework")
    shop(own_shop, "db", "upgrade")
    shop(own_shop, "db", "check")
    succeed(*tests, says_so, cwd=own_shop, env=environment(own_shop))
    handle_events(own_shop, 1)
    assert changed(own_shop) >= {"migrations/versions/mailroom_2_add_origin.py"}

    shop(own_shop, "db", "upgrade", DATABASE__URL="sqlite+aiosqlite:///new.db")
    fresh = by_copier(tmp_path / "fresh", source=newer)
    shop(fresh, "db", "upgrade")
    old, *others = [columns(one) for one in (own_shop / "shop.db", own_shop / "new.db", fresh / "shop.db")]
    assert others == [old, old]
    assert ("origin", "VARCHAR(50)", None) in old
