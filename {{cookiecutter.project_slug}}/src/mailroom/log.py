"""How mailroom logs: one event per line with its facts as fields, through the standard `logging` module.

A host decides what becomes of the records; `configure_logging` is for programs that have no opinion.
"""

import logging
import sys
from collections.abc import MutableMapping
from contextlib import AbstractContextManager
from typing import Any, TextIO

import structlog
from structlog.stdlib import BoundLogger, ExtraAdder, ProcessorFormatter

from mailroom.envelope import Message
from mailroom.settings import LoggingSettings

_QUIET = {
    "alembic": logging.WARNING,
    "aiosqlite": logging.WARNING,
    "aiormq": logging.CRITICAL,
    "aio_pika": logging.CRITICAL,
    "azure": logging.CRITICAL,
}
"""alembic tells what it looked at, not what it did; aiosqlite and the clients of brokers would log every parameter and
frame, and so the payloads; and what goes wrong with a connection is told by whoever uses it."""

_TAKEN = (vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}) - {"exc_info", "stack_info"}
"""What a record calls its own; the two left out are what `logging` is told."""


def _rename_taken(_logger: Any, _method: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A record has attributes of its own, and `logging` raises for a fact named like one, such as `name`."""
    return {f"{name}_" if name in _TAKEN else name: value for name, value in facts.items()}


_INTO_A_RECORD: list[structlog.typing.Processor] = [
    structlog.stdlib.filter_by_level,
    structlog.contextvars.merge_contextvars,
    _rename_taken,
    structlog.stdlib.render_to_log_kwargs,
]


class _ToStandardError(logging.StreamHandler[TextIO]):
    """Asks for it anew at each record: a bar of progress takes it over, and keeps lines apart from itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def get_logger(name: str) -> BoundLogger:
    """A logger whose key-value pairs become fields of an ordinary log record."""
    logger: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name), wrapper_class=BoundLogger, processors=_INTO_A_RECORD
    )
    return logger


def logged_with(message: Message, attempt: int) -> AbstractContextManager[None]:
    """Whatever is logged meanwhile, by whoever, says which message it is about. Payloads are never logged."""
    return structlog.contextvars.bound_contextvars(
        message_id=str(message.message_id), event_type=message.event_type, attempt=attempt
    )


def configure_logging(settings: LoggingSettings, *, at_least: int = logging.NOTSET) -> None:
    """Writes every record of the process to standard error, as one line: for people, or as JSON (`logging.format`).

    What `structlog.get_logger()` is told becomes such a record as well. Records below `logging.level`, or below
    `at_least`, are left out.
    """
    structlog.configure(
        processors=_INTO_A_RECORD, wrapper_class=BoundLogger, logger_factory=structlog.stdlib.LoggerFactory()
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    if settings.format == "json":
        renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    handler = _ToStandardError()
    handler.setFormatter(
        ProcessorFormatter(foreign_pre_chain=shared, processors=[ProcessorFormatter.remove_processors_meta, renderer])
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(logging.getLevelNamesMapping()[settings.level], at_least))
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(max(level, root.level))
