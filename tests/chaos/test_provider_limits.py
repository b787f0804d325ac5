"""A provider that says 429 to a worker of 64 slots, each of which would call it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from .stack import Stack, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]

SLOTS, TREES, ASKERS = 64, 4, 20
#: Seconds that the provider asks for: 20 in the long form.
BUSY_S = float(os.environ.get("CHAOS_BUSY_S", "20" if os.environ.get("CHAOS") == "long" else "8"))


def test_nobody_calls_before_the_time_and_the_slots_are_free(make_stack: Callable[..., Stack]) -> None:
    """Eighty runs wait for one key; none fails, none calls early, and other work is done meanwhile."""
    stack = make_stack(concurrency=str(SLOTS), provider_wait_s="0.2", registration_patience_s="20")
    stack.start_all(but="worker")
    stack.start("worker", "--pool", "threads")
    stack.wait_ready()
    with stack.client() as client:
        sessions = [client.submit("questioner", f"{ASKERS} {BUSY_S:g}") for _ in range(TREES)]
        wait_until((stack.marks / "told").exists, "an answer of the provider", explain=stack.logs)
        busy_until = float((stack.marks / "retry-at").read_text())
        other = client.submit("branch", "2,2")
        assert stack.answer(other) == "4"
        assert time.time() < busy_until, "the other tree had to wait for the slots"
        assert [stack.answer(session) for session in sessions] == [str(ASKERS)] * TREES
    stack.assert_settled()
    assert not list(stack.marks.glob("paid-*-early"))
    runs = [
        run for session in sessions for s in stack.ledger.tree(session.id) for run in stack.ledger.runs(s.id)
    ]
    assert {run.failures for run in runs} == {0}
    assert any(tried.how == "parked" for run in runs for tried in run.tries)
