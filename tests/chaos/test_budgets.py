"""Many children under a budget that is too small for all of them, while processes are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from orchestrator.ledger import SessionState
from orchestrator.redisdb import ledger_keys

from .stack import Stack, children_of, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]

CHILDREN, ALLOWED, KILLS = 200, 120, 20


def kill_pool_processes(stack: Stack, over: Callable[[], bool]) -> int:
    """Kill one process of the worker's pool after the other while there is work; how many were killed."""
    (worker,) = (process for process in stack.running if process.name == "worker")
    killed = 0
    while killed < KILLS and not over():
        for pid in children_of(worker)[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        time.sleep(0.05)
    return killed


@pytest.mark.long
def test_children_together_never_spend_more_than_their_budget(make_stack: Callable[..., Stack]) -> None:
    """Overspend is 0, each child has its one terminal callback, and the numbers add up after 20 kills."""
    stack = make_stack(max_process_deaths="100", concurrency="2")
    stack.start_all()
    with stack.client() as client:
        session = client.submit("treasurer", str(CHILDREN), budget={"tokens": 10 * ALLOWED})

        def over() -> bool:
            return stack.ledger.session(session.id).ended_ms > 0

        wait_until(lambda: stack.ledger.session(session.id).children >= CHILDREN // 10, "children")
        killed = kill_pool_processes(stack, over)
        answer = stack.answer(session)
    stack.assert_settled()

    tree = stack.ledger.tree(session.id)
    completed = sum(s.state == SessionState.FINISHED for s in tree[1:])
    failed = sum(s.state == SessionState.FAILED for s in tree[1:])
    assert answer == f"{completed} completed, {failed} failed"
    assert completed + failed == CHILDREN
    assert killed > KILLS // 2

    budget = stack.ledger.spending.budget(session.id)
    spent = budget.spent["requests"]
    assert budget.spent["tokens"] == 10 * spent == sum(s.used.tokens for s in tree)
    assert budget.users["spender"]["requests"] == spent
    assert set(budget.reserved.values()) == {0}
    # Nothing is spent that the budget does not have, and what it has is spent.
    assert ALLOWED - killed <= spent <= ALLOWED
    # A kill costs one call that gave no child an answer, whether or not it was paid.
    assert spent - killed <= completed <= spent
    paid = len((stack.marks / f"paid-{session.id}-token").read_text())
    assert paid <= spent <= paid + killed
    assert all("the budget of tree" in s.reason for s in tree[1:] if s.state == SessionState.FAILED)
    assert not [key for key in stack.redis.scan_iter() if key.endswith(b":reserved")]
    assert stack.redis.exists(ledger_keys.budget(session.id))
