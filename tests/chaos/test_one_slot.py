"""One slot and runs that wait for one another in it: all of them are executed, and a stop reaches all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.ledger import CLOSED

from .stack import Stack, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

DEPTH = 50


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_fifty_nested_calls_finish_in_one_slot(pool: str, make_stack: Callable[..., Stack]) -> None:
    stack = make_stack(concurrency="1")
    stack.start_all(but="worker")
    stack.start("worker", "--pool", pool)
    stack.wait_ready()
    with stack.client() as client:
        assert stack.answer(client.submit("nested", str(DEPTH))) == str(DEPTH)
    stack.assert_settled()


def test_a_stop_reaches_every_run_that_waits_in_a_slot(make_stack: Callable[..., Stack]) -> None:
    """Ten runs wait for one another, and the eleventh is at work."""
    stack = make_stack(concurrency="1")
    stack.start_all()
    stack.wait_ready()
    with stack.client() as client:
        root = client.submit("nested", "400")
        wait_until(lambda: len(stack.ledger.sweep.leases(0)) > 10, "ten that wait", explain=stack.logs)
        client.stop(root.id)
        wait_until(
            lambda: all(session.state in CLOSED for session in stack.ledger.tree(root.id)),
            "the end of all",
            explain=stack.logs,
        )
        assert stack.answer(client.submit("leaf", "1")) == "1"
    stack.assert_settled()
