"""Engines: how each kind of database is connected to, and what it says when something goes wrong."""

from importlib import import_module
from importlib.util import find_spec

from mailroom.errors import ConfigurationError
from mailroom.persistence.engines.base import EngineKind
from mailroom.settings import DatabaseSettings

__all__ = ["EngineKind", "engine_kind"]


def engine_kind(settings: DatabaseSettings) -> EngineKind:
    """What is special about this kind of database. Raises ConfigurationError if the project was made without it."""
    module = f"{__name__}.{settings.kind}"
    if find_spec(module) is None or find_spec(settings.driver) is None:
        raise ConfigurationError(
            f"database.url names {settings.kind}, and this project was made without it: "
            f"its driver, {settings.driver}, or mailroom's part for it is missing. "
            f"Run: copier update --data database={settings.kind}"
        )
    kind: EngineKind = import_module(module).KIND
    return kind
