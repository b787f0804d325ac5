"""Ready runs on a whole stack: in which order slots take them, and how soon they are taken once their wake-ups were lost."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from .stack import Stack, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

#: The queue of the agents in `crew.py`, which is a list at the broker.
QUEUE = "chaos"
BACKLOG = 58
#: Seconds after a wake-up was lost within which the sweep repeats it: a second, doubled for each that nobody answered. The
#: rest is for a loaded machine.
TAKEN_WITHIN_S = 4 + 6


def test_a_backlog_whose_wakeups_were_all_lost_is_worked_off_soon(make_stack: Callable[..., Stack]) -> None:
    """However many runs are ready, one message wakes a worker, and the first one wakes the rest."""
    stack = make_stack()
    stack.start_all()
    (worker,) = [process for process in stack.running if process.name == "worker"]
    with stack.client() as client:
        # Its slots sleep: one that has just worked would look for more by itself.
        os.killpg(worker.pid, signal.SIGSTOP)
        # Redis would hand the first message to a worker that listens, although it is stopped.
        for listener in (c for c in stack.redis.client_list() if c["cmd"] == "brpop"):
            stack.redis.client_kill_filter(_id=listener["id"])
        submitted = [client.submit("leaf", "1") for _ in range(BACKLOG)]
        wait_until(lambda: stack.ledger.sweep.ready(0, ["leaf"]) == {"leaf": BACKLOG}, "a backlog")
        assert stack.redis.delete(QUEUE) == 1
        lost = time.monotonic()
        os.killpg(worker.pid, signal.SIGCONT)
        wait_until(
            lambda: stack.ledger.sweep.ready(0, ["leaf"]) != {"leaf": BACKLOG}, "a wake", explain=stack.logs
        )
        assert time.monotonic() - lost < TAKEN_WITHIN_S
        assert [stack.answer(session) for session in submitted] == ["1"] * BACKLOG
        assert time.monotonic() - lost < 2 * TAKEN_WITHIN_S
        runs = [run for session in submitted for run in client.runs(session.id)]
    assert [(run.attempt, run.lost) for run in runs] == [(1, 0)] * BACKLOG
    stack.assert_settled()
