"""The end of a run, as Celery shows it: success, failure, retry or revoked."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from orchestrator.errors import RunFailed, RunParked
from orchestrator.policy.sealed_text import ENCRYPTED

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
