"""What came of a run, as Celery is to see it: success, failure, to be tried again, or nothing of note."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from celery.exceptions import Ignore, Retry

from orchestrator.errors import RunFailed

#: What came of a run, for the log.
Verdict = Literal[
    "refused",
    "damaged",
    "not-served",
    "lost",
    "outage",
    "retry",
    "idle",
    "finished",
    "failed",
    "stopped",
    "deleted",
]
#: Characters of an error that Celery's events carry.
SHOWN_CHARS: Final = 2000


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """What came of one run."""

    run: str
    verdict: Verdict
    reason: str = ""  #: why it failed, in words
    error: BaseException | None = None  #: what its agent raised
    retry_in_s: float = 0.0  #: seconds until it is tried again, with the verdict `retry`


def celery_outcome(ends: Sequence[RunEnd], *, redelivered: bool = False) -> str:
    """What a Celery task returns whose message named these runs.

    The ledger has every end by now, so Celery acknowledges the message in every case, stores nothing and sends
    nothing again; Flower and Celery's events show what is raised here.

    Raises:
        RunFailed: a run failed, with the traceback of its agent.
        celery.exceptions.Retry: a run failed and the ledger will have it tried again.
        celery.exceptions.Ignore: the message was delivered before, and what came of its runs then is shown.
    """
    for end in ends:
        if end.verdict == "failed":
            raise _failure(end)
    for end in ends:
        if end.verdict == "retry":
            raise Retry(exc=_failure(end), when=round(end.retry_in_s, 3))
    if redelivered and all(end.verdict == "refused" for end in ends):
        raise Ignore
    return summary([end.verdict for end in ends])


def _failure(end: RunEnd) -> RunFailed:
    """Made of text only: Celery takes it to another process, where an agent's own classes may not be known."""
    reason = end.reason if len(end.reason) <= SHOWN_CHARS else f"{end.reason[: SHOWN_CHARS - 1]}…"
    failure = RunFailed(end.run, reason)
    return failure if end.error is None else failure.with_traceback(end.error.__traceback__)


def summary(verdicts: Sequence[str]) -> str:
    """What came of the runs of a message, in a line for Flower."""
    if len(verdicts) == 1:
        return verdicts[0]
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts).items())
