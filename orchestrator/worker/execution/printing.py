"""Keeps what an agent prints for those who ask why, still prints it unless its session is encrypted; and the outcome beside it.

The output belongs to the run in whose context it is printed, also in tasks and in threads that were given that context
(`asyncio.to_thread`, `contextvars.copy_context`). A thread without a context belongs to the run of this process, if there is
only one. What programs write to the file descriptors themselves does not come here.

Of an encrypted session neither Redis nor the log has a word: what it prints is dropped, and so are the lines that code other
than ours logs for it.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TextIO, cast

import redis

from orchestrator import machine
from orchestrator.errors import RunFailed, RunParked
from orchestrator.ids import span_id, trace_id
from orchestrator.ledger import ClaimedRun
from orchestrator.ledger.reader import Printed, PrintedTexts
from orchestrator.log import get_logger
from orchestrator.machine import SystemClock
from orchestrator.policy.sealed_text import ENCRYPTED

#: Seconds between two times at which what a run prints is written down while it goes on.
WRITE_EVERY_S: Final = 1.0

_log = get_logger()


def names_in_log(held: ClaimedRun, *, traces: bool) -> dict[str, str]:
    """Return what each log line of a run names: with ``traces`` its trace and span, too."""
    session, run = held.session, held.run
    names = {"agent": session.agent, "session": session.id, "run": run.id}
    if traces:
        names |= {"trace_id": trace_id(session.root or session.id), "span_id": span_id(run.id, run.attempt)}
    return names


class Tail:
    """The last bytes of a stream, and how many went before them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self.seen = 0  #: how many bytes there were

    def add(self, piece: bytes) -> None:
        """Take what has come."""
        self.seen += len(piece)
        self._kept += piece[-self._limit :]
        if len(self._kept) > 2 * self._limit:
            del self._kept[: -self._limit]

    @property
    def end(self) -> str:
        """The end of the stream."""
        return bytes(self._kept[-self._limit :]).decode(errors="replace")

    def text(self) -> str:
        """The end of the stream; its first line says what is missing, if anything is."""
        missing = self.seen - self._limit
        return f"[{missing} bytes before this were left out]\n{self.end}" if missing > 0 else self.end


class Prints:
    """Output of one try of a run; without ``write`` it is secret, and dropped. Safe to share between threads."""

    def __init__(self, limit: int, write: Callable[[int, str], None] | None) -> None:
        self.secret = write is None
        self._tail = Tail(limit)
        self._write = write
        self._lock = threading.Lock()
        self._written = 0
        self._due = machine.monotonic() + WRITE_EVERY_S

    def add(self, text: str | bytes) -> None:
        """Take what was printed."""
        if self._write is None:
            return
        octets = text.encode(errors="backslashreplace") if isinstance(text, str) else text
        with self._lock:
            self._tail.add(octets)
            if machine.monotonic() < self._due:
                return
            self._due = machine.monotonic() + WRITE_EVERY_S
        self.flush()

    def flush(self) -> None:
        """Store what has come since the last time. If the server is away, only this output is lost."""
        with self._lock:
            size, text = self._tail.seen, self._tail.end
            if self._write is None or size == self._written:
                return
            self._written = size
        try:
            self._write(size, text)
        except (redis.RedisError, OSError) as error:
            _log.debug("output-not-written", error=str(error))


_present: ContextVar[Prints | None] = ContextVar("orchestra-prints", default=None)
_active: list[Prints] = []
_changing = threading.Lock()
_wrapped: list[tuple[str, _Routed]] = []
_filtered: list[tuple[logging.Handler, _Withheld]] = []


class _Routed:
    """A stream that also tells the run that prints."""

    def __init__(self, target: TextIO) -> None:
        self.target = target

    def write(self, text: str) -> int:
        note(text)
        return len(text) if _is_secret() else self.target.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


def note(text: str | bytes) -> None:
    """Keep what was printed by the run in whose context this is called; nothing outside of one."""
    of = _whose()
    if len(of) == 1:
        of[0].add(text)


def _whose() -> list[Prints]:
    """The run in whose context this is called; without a context, all runs that it may be."""
    prints = _present.get()
    return _active[:] if prints is None else [prints]


def _is_secret() -> bool:
    return any(prints.secret for prints in _whose())


class _Withheld(logging.Filter):
    """Drops the lines that other code than ours logs for an encrypted session; ours hold no text of it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] == "orchestrator" or not _is_secret()


@contextmanager
def keeping(held: ClaimedRun, store: PrintedTexts, *, limit: int, ttl_s: float) -> Iterator[None]:
    """Keep what is printed in this block, as the output of a try of a run: the last ``limit`` bytes, none with 0.

    Of an encrypted session nothing is kept, also not as the output of another run: Redis would have it in clear.
    """
    run, secret = held.run, held.session.sealed or held.session.encrypted
    if not (limit or secret):
        yield
        return

    def write(size: int, text: str) -> None:
        printed = Printed(run=run.id, attempt=run.attempt, at_ms=SystemClock().now_ms(), size=size, text=text)
        store.write(held.session.id, run.number, printed, ttl_s=ttl_s)

    prints = Prints(limit, None if secret else write)
    token = _present.set(prints)
    with _changing:
        _active.append(prints)
        _install()
    try:
        yield
    finally:
        _present.reset(token)
        with _changing:
            _active.remove(prints)
            if not _active:
                _uninstall()
        prints.flush()


def _install() -> None:
    """Route the streams and the log of this process, as they are now."""
    if not _filtered:
        for handler in logging.getLogger().handlers:
            withheld = _Withheld()
            handler.addFilter(withheld)
            _filtered.append((handler, withheld))
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Routed):
            routed = _Routed(stream)
            _wrapped.append((name, routed))
            setattr(sys, name, cast("TextIO", routed))


def _uninstall() -> None:
    """Put back what was there, unless somebody has put something else there since."""
    while _filtered:
        handler, withheld = _filtered.pop()
        handler.removeFilter(withheld)
    while _wrapped:
        name, routed = _wrapped.pop()
        if getattr(sys, name) is routed:
            setattr(sys, name, routed.target)


#: What came of a run, for the log.
Verdict = Literal[
    "refused",
    "damaged",
    "lost",
    "outage",
    "retry",
    "parked",
    "idle",
    "finished",
    "failed",
    "stopped",
    "deleted",
]
#: Characters of an error, and of a traceback, that Celery's events carry.
SHOWN_CHARS: Final = 2000
SHOWN_TRACEBACK_CHARS: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """The end of one run."""

    run: str
    verdict: Verdict
    reason: str = ""  #: why it failed, in words
    error: BaseException | None = None  #: what its agent raised
    retry_in_s: float = 0.0  #: seconds until it is tried again, with the verdict `retry`

    def without_words(self) -> RunEnd:
        """The same without texts, for those who are not to read them."""
        return replace(self, reason=ENCRYPTED if self.reason else "", error=None)


def celery_event(end: RunEnd, *, runtime_s: float) -> tuple[str, dict[str, Any]]:
    """The Celery event that shows this end of a task, with its fields."""
    match end.verdict:
        case "failed":
            return "task-failed", {"exception": _failure(end), "traceback": _traceback(end)}
        case "retry":
            return "task-retried", {"exception": _failure(end), "traceback": _traceback(end)}
        case "parked":
            return "task-retried", {"exception": end.reason, "traceback": ""}
        case "stopped" | "deleted":
            return "task-revoked", {"terminated": True, "signum": None, "expired": False}
        case "lost" | "outage" | "refused":
            reason = f"{end.verdict}: another try of it follows, or has been made"
            return "task-retried", {"exception": reason, "traceback": ""}
    return "task-succeeded", {"result": end.verdict, "runtime": runtime_s}


def _failure(end: RunEnd) -> str:
    """The error as Celery's own events have it."""
    reason = end.reason if len(end.reason) <= SHOWN_CHARS else f"{end.reason[: SHOWN_CHARS - 1]}…"
    return repr(RunFailed(end.run, reason))


def _traceback(end: RunEnd) -> str:
    if end.error is None:
        return ""
    # The end of it tells most.
    return traceback_of(end.error)[-SHOWN_TRACEBACK_CHARS:]


def cause_of(group: BaseExceptionGroup) -> BaseException:
    """Return the error of a group as if the agent itself had raised it: the only one, or the first if all are waits;
    else the group.
    """
    errors = leaves(group)
    alike = len(errors) == 1 or all(isinstance(error, RunParked) for error in errors)
    return errors[0] if alike else group


def leaves(error: BaseException) -> list[BaseException]:
    """An error, or each of those that a group and the groups in it hold."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


def traceback_of(error: BaseException) -> str:
    """A traceback that begins in the agent's own code; all of it where no such code is in it."""
    own = error.__traceback__
    while own is not None and str(own.tb_frame.f_globals.get("__name__")).startswith("orchestrator."):
        own = own.tb_next
    return "".join(traceback.format_exception(type(error), error, own or error.__traceback__))
