"""Structured logs: an event name and fields, on standard error, for people or for machines.

Events are names (``run-claimed``), never sentences with values in them; the values are fields.
Lines of other libraries that use the standard ``logging`` come out in the same form.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import structlog

from orchestrator.settings import Settings


def get_logger(**fields: Any) -> structlog.stdlib.BoundLogger:
    """A logger whose every line carries ``fields``."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(**fields)
    return logger


def configure_logging(settings: Settings, **fields: Any) -> None:
    """Set up logging for this process; ``fields`` (such as the service's name) are on every line."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    console = _wants_console(settings.log_format)
    render: list[structlog.typing.Processor] = (
        [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    level = getattr(logging, settings.log_level.upper())
    logging.basicConfig(handlers=[handler], level=level, force=True)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(**fields)


def _wants_console(log_format: Literal["auto", "console", "json"]) -> bool:
    return log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
