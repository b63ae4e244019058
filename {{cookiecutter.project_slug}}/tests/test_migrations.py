"""The migrations make exactly the tables that the models describe."""

from pathlib import Path

from mailroom import Mailroom
from mailroom.persistence import schema


async def test_models_and_migrations_agree(mailroom: Mailroom, alembic_ini: Path) -> None:
    assert await schema.check(mailroom.database.engine, ini=alembic_ini) == []


async def test_migrations_can_be_taken_back_and_applied_again(mailroom: Mailroom, alembic_ini: Path) -> None:
    await schema.downgrade(mailroom.database.engine, "base", ini=alembic_ini)
    assert await schema.current(mailroom.database.engine) == ()
    await schema.upgrade(mailroom.database.engine, ini=alembic_ini)
    assert await schema.check(mailroom.database.engine, ini=alembic_ini) == []
