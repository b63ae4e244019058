"""How mailroom logs: one event per line with its facts as fields, through the standard `logging` module.

A host decides what becomes of the records; `configure_logging` is for programs that have no opinion.
"""

import logging
import sys

import structlog
from structlog.stdlib import BoundLogger, ExtraAdder, ProcessorFormatter

from mailroom.settings import LoggingSettings


def get_logger(name: str) -> BoundLogger:
    """A logger whose key-value pairs become fields of an ordinary log record."""
    logger: BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        wrapper_class=BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.render_to_log_kwargs,
        ],
    )
    return logger


def configure_logging(settings: LoggingSettings) -> None:
    """Writes every record of the process to standard error, as one line: for people, or as JSON (`logging.format`)."""
    shared: list[structlog.typing.Processor] = [
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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        ProcessorFormatter(foreign_pre_chain=shared, processors=[ProcessorFormatter.remove_processors_meta, renderer])
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.level)
    logging.getLogger("alembic").setLevel(
        max(logging.WARNING, root.level)
    )  # it tells what it looked at, not what it did
