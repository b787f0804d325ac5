"""Structured logs: an event name and fields, on standard error, for people or for machines.

Events are names (``run-claimed``), never sentences with values in them; the values are fields. Lines of
other libraries come out in the same form. This is the standard ``logging`` with two formatters: each of a
stack's processes loads it at its start, where a logging library would cost a fifth of that time.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Literal

from orchestrator.config.settings import Settings
from orchestrator.display.text import visible
from orchestrator.machine import isoformat

_LOGGER = logging.getLogger("orchestra")
#: What `logging` puts on every record; anything else was given with the line.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "fields", "data"}
#: What the code that runs now works on; copied with the context to tasks of asyncio and to `asyncio.to_thread`.
_context: ContextVar[Mapping[str, Any]] = ContextVar("log_context", default=MappingProxyType({}))
#: Seconds between two reports of a thing by `RateLimitedLog`, and how many things it remembers at most.
_EVERY_S = 60.0
_REMEMBERED = 10_000
_COLOURS = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}


class RateLimitedLog:
    """Tells which of many things to report again: each at most once a minute."""

    def __init__(self) -> None:
        self._reported: dict[str, float] = {}

    def due(self, thing: str) -> bool:
        """Return True if a thing is to be reported now."""
        now = time.monotonic()
        last = self._reported.get(thing)
        if last is not None and now - last < _EVERY_S:
            return False
        if len(self._reported) >= _REMEMBERED:
            self._reported.clear()
        self._reported[thing] = now
        return True


class Log:
    """A logger whose every line carries the fields it is bound to."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def bind(self, **fields: Any) -> Log:
        """A logger with these fields as well."""
        return Log({**self._fields, **fields})

    # In `fields`, `exc_info` is an exception whose traceback is written with the line.

    def debug(self, event: str, **fields: Any) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write(logging.ERROR, event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        self._write(logging.ERROR, event, {"exc_info": True, **fields})

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if _LOGGER.isEnabledFor(level):
            error = fields.pop("exc_info", None)
            # The event is no format string; logging leaves it alone when there are no arguments.
            _LOGGER.log(level, event, exc_info=error, extra={"fields": {**self._fields, **fields}})


def get_logger(**fields: Any) -> Log:
    """A logger whose every line carries ``fields``."""
    return Log(fields)


@contextmanager
def log_context(**fields: Any) -> Iterator[None]:
    """Put these fields on every line that the code of this block writes, by whatever logger."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


@contextmanager
def in_span(traceparent: str) -> Iterator[None]:
    """Make a span the parent of those that this block begins, if anybody has loaded the API of OpenTelemetry.

    The span itself is not written here: that of a run is written from the audit trail.
    """
    if (trace := sys.modules.get("opentelemetry.trace")) is None:
        yield
        return
    _, tree, span, flags = (int(number, 16) for number in traceparent.split("-"))
    parent = trace.SpanContext(tree, span, is_remote=True, trace_flags=trace.TraceFlags(flags))
    with trace.use_span(trace.NonRecordingSpan(parent)):
        yield


def configure_logging(settings: Settings, **fields: Any) -> None:
    """Set up logging for this process; ``fields`` (such as the service's name) are on every line."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        _ConsoleFormatter(fields) if _wants_console(settings.log_format) else _JsonFormatter(fields)
    )
    logging.basicConfig(handlers=[handler], level=settings.log_level.upper(), force=True)


def _wants_console(log_format: Literal["auto", "console", "json"]) -> bool:
    return log_format == "console" or (log_format == "auto" and sys.stderr.isatty())


class _JsonFormatter(logging.Formatter):
    """Formatter of log lines as JSON, one object a line."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__()
        self._fields = fields

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": isoformat(round(record.created * 1000)),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **self._fields,
            **_context.get(),
            **_fields_of(record),
        }
        if record.name != _LOGGER.name:
            line["logger"] = record.name
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _ConsoleFormatter(logging.Formatter):
    """A line for people: time, level, event, fields."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__()
        self._fields = fields
        self._coloured = sys.stderr.isatty()

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        shown = (
            f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level:<8} "
            f"{visible(record.getMessage(), lines=True)}"
        )
        if self._coloured and level in _COLOURS:
            shown = f"{_COLOURS[level]}{shown}\x1b[0m"
        fields = {**self._fields, **_context.get(), **_fields_of(record)}
        line = " ".join([shown, *(f"{name}={visible(_short(value))}" for name, value in fields.items())])
        if not record.exc_info:
            return line
        return f"{line}\n{visible(self.formatException(record.exc_info), lines=True)}"


def _short(value: Any) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text or "\n" in text else text


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields given with a line: ours, and what other libraries pass as ``extra``."""
    given: dict[str, Any] | None = getattr(record, "fields", None)
    if given is not None:
        return given
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}
