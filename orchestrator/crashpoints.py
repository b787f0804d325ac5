"""Named places at which a test may kill this process, to show that a crash there loses and doubles nothing.

The environment variable ORCHESTRA_CRASH_AT names a place and a file: ``router.acted:/tmp/mark``, or
``worker.effect#3:/tmp/mark`` for the third time. A process that reaches the place creates the file and kills itself. When
the file exists already, the process goes on: so the replacement of a killed process lives. With
``router.read=stop:/tmp/mark`` the process stops until it gets a SIGCONT. Without the variable nothing happens.
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "ORCHESTRA_CRASH_AT"

#: Every place; each is between two steps of one operation.
POINTS: Final = (
    "submit.checked",
    "submit.written",
    "router.read",
    "router.acted",
    "router.dispatched",
    "router.refused",
    "router.buried",
    "router.parked",
    "worker.claimed",
    "worker.effect",
    "worker.taken",
    "worker.stepped",
    "worker.recorded",
    "worker.worked",
    "worker.committed",
    "settle.stored",
    "worker.settled",
    "callbacks.read",
    "callbacks.stopped",
    "delivery.flushed",
    "delivery.sent",
    "delivery.child-closed",
    "delivery.forgotten",
    "delivery.closed",
    "callbacks.handled",
    "reaper.released",
    "reaper.redispatched",
    "reaper.submitted",
    "reaper.pruned",
    "notifier.delivered",
    "audit.read",
    "audit.written",
)


class _Plan:
    """The place at which this process dies, if any."""

    def __init__(self, text: str) -> None:
        place, _, self.mark = text.partition(":")
        place, _, how = place.partition("=")
        self.signal = signal.SIGSTOP if how == "stop" else signal.SIGKILL
        self.point, _, times = place.partition("#")
        self.left = int(times or 1)


_plan = _Plan(os.environ.get(VARIABLE, ""))


def read_plan() -> None:
    """Read the variable again; for a forked process, whose environment has changed."""
    global _plan  # noqa: PLW0603
    _plan = _Plan(os.environ.get(VARIABLE, ""))


def failpoint(point: str) -> None:
    """Mark a place; kills this process if the variable names the place."""
    if point == _plan.point:
        _die(_plan)


def _die(plan: _Plan) -> None:
    plan.left -= 1
    if plan.left > 0:
        return
    try:
        os.close(os.open(plan.mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return
    os.kill(os.getpid(), plan.signal)
