"""A worker that is asked to end gives back what it has taken, whatever its pool."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from orchestrator.ledger import SessionState

from .stack import Stack, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_nothing_stays_with_a_worker_that_ends(pool: str, make_stack: Callable[..., Stack]) -> None:
    """The broker knows of no message that the worker holds, and the next worker does the rest."""
    stack = make_stack()
    stack.start_all(but="worker")
    worker = stack.start("worker", "--pool", pool)
    stack.wait_ready()
    with stack.client() as client:
        sessions = [client.submit("branch", "3,3") for _ in range(3)]
        wait_until(
            lambda: any(root.state is not SessionState.PENDING for root in client.sessions()),
            "a beginning",
            explain=stack.logs,
        )
        os.kill(worker.pid, signal.SIGTERM)
        wait_until(lambda: not worker.alive, "its end", explain=stack.logs)
        assert stack.redis.hlen("unacked") == stack.redis.zcard("unacked_index") == 0
        stack.start("worker", "--pool", pool)
        assert [stack.answer(session) for session in sessions] == ["9"] * 3
    stack.assert_settled()
