"""One slot and runs that wait for one another in it: all of them are executed, and a stop reaches all."""

from __future__ import annotations

import os

import pytest

from orchestrator.ids import run_id

from .events import events_of
from .stack import MakeStack, long

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

#: Runs that wait for one another: many more than a worker has processes.
DEPTH = 50 if os.environ.get("CHAOS") == "long" else 15


@pytest.mark.parametrize("pool", ["threads", long("prefork")])
def test_nested_calls_finish_in_one_slot(pool: str, make_stack: MakeStack) -> None:
    stack = make_stack(concurrency="1")
    stack.start_all("--pool", pool)
    with stack.client() as client:
        assert stack.answer(client.submit("nested", str(DEPTH))) == str(DEPTH)
    stack.assert_settled()


def test_a_child_that_is_ended_by_force_in_a_lent_slot_costs_its_parent_no_attempt(
    make_stack: MakeStack,
) -> None:
    """The process that both are in dies; only the child's run failed, and Flower hears so."""
    stack = make_stack(concurrency="1", stop_grace_s="0.2")
    stack.start_all()
    with events_of(stack) as events, stack.client() as client:
        session = client.submit("enduring", "stubborn")
        assert stack.answer(session) == "2 failed"
        (run,) = stack.ledger.runs(session.id)
        assert (run.died, run.lost, run.failures) == (0, 1, 0)
        (child,) = (one for one in client.tree(session.id) if one.parent)
        failed = events.wait_for("task-failed", run_id(child.id, 1), stack)
        assert "ended by force" in failed["exception"]
        assert "task-failed" not in events.of(run.id)
    stack.assert_settled()
