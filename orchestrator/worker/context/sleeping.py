"""Waiting for a time without a slot: a durable step that records when the run may go on, and a run that parks until then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.clock import isoformat
from orchestrator.errors import RunSleeps
from orchestrator.log import get_logger

if TYPE_CHECKING:
    from orchestrator.worker.context.context import Context

#: The name of the step that records until when a run sleeps.
STEP: Final = "sleep"

_log = get_logger()


def sleep(context: Context, *, wait_ms: int | None = None, until_ms: int = 0) -> None:
    """Return once a run has slept for ``wait_ms``, or until ``until_ms``; what the first try recorded counts.

    A clock that goes back makes a sleep of ``wait_ms`` no longer than twice that: the ledger wakes the run after
    ``wait_ms`` at the latest, and one whose time is still further ahead than that has slept.

    Raises:
        RunSleeps: the time has not come.
        StepMismatch, ClaimLost, SessionStopped, ServerUnavailable: as for `step`.
    """

    def record() -> list[int]:
        return [
            until_ms if wait_ms is None else context.now_ms() + wait_ms,
            -1 if wait_ms is None else wait_ms,
        ]

    due_ms, longest_ms = context.step(STEP, record)
    left_ms = due_ms - context.now_ms()
    if left_ms <= 0 or (0 <= longest_ms < left_ms):
        return
    _log.info("run-sleeps", until=isoformat(due_ms))
    raise RunSleeps(isoformat(due_ms), f"{left_ms / 1000:.3f}")
