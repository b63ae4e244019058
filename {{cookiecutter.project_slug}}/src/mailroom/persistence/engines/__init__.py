"""Engines: how each kind of database is connected to, and what it says when something goes wrong."""

from importlib import import_module
from importlib.util import find_spec

from mailroom.errors import ConfigurationError
from mailroom.persistence.engines.base import EngineKind
from mailroom.settings import DatabaseSettings
from mailroom.settings_sections import BACKENDS

__all__ = ["EngineKind", "check_present", "engine_kind"]


def engine_kind(backend: str) -> EngineKind:
    """What is special about a database, by SQLAlchemy's name of it: the name of an engine's dialect."""
    kind: EngineKind = import_module(f"{__name__}.{BACKENDS[backend].kind}").KIND
    return kind


def check_present(settings: DatabaseSettings) -> None:
    """Raises ConfigurationError if the project was made without this kind of database, or its driver cannot load."""
    if find_spec(f"{__name__}.{settings.kind}") is None or find_spec(settings.driver) is None:
        raise ConfigurationError(
            f"database.url names {settings.kind}, and this project was made without it: mailroom's part for it, or "
            f"its driver {settings.driver}, is missing",
            remedy=f"run: copier update --data database={settings.kind}",
        )
    try:
        import_module(settings.driver)
    except ImportError as error:
        raise ConfigurationError(
            f"{settings.driver}, the driver of {settings.kind}, cannot be loaded: {error}",
            remedy="README.md of the project says what has to be installed beside it",
        ) from error
