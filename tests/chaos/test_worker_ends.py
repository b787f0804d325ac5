"""A worker that is asked to end gives back what it has taken, whatever its pool."""

from __future__ import annotations

import os
import signal

import pytest

from orchestrator.ledger import SessionState

from .stack import MakeStack, children_of, long

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]


@pytest.mark.parametrize("pool", [long("prefork"), "threads", long("solo")])
def test_nothing_stays_with_a_worker_that_ends(pool: str, make_stack: MakeStack) -> None:
    """The broker knows of no message that the worker holds, and the next worker does the rest."""
    stack = make_stack()
    worker = stack.start_all("--pool", pool)
    with stack.client() as client:
        sessions = [client.submit("branch", "3,3") for _ in range(3)]
        stack.wait(
            lambda: any(root.state is not SessionState.PENDING for root in client.sessions()), "a beginning"
        )
        os.kill(worker.pid, signal.SIGTERM)
        stack.wait(lambda: not worker.alive, "its end")
        assert stack.redis.hlen("unacked") == stack.redis.zcard("unacked_index") == 0
        stack.start("worker", "--pool", pool)
        assert [stack.answer(session) for session in sessions] == ["9"] * 3
    stack.assert_settled()


@pytest.mark.parametrize(
    ("pool", "how"),
    [("prefork", "remote"), ("solo", "TERM"), long("prefork", "TERM"), long("threads", "TERM")],
)
def test_no_run_begins_once_a_worker_is_to_end(pool: str, how: str, make_stack: MakeStack) -> None:
    """What is at work ends; what is ready stays so for other workers, whoever asked this one to end."""
    stack = make_stack(remote_control="1", lease_s="60")
    worker = stack.start_all("--pool", pool, CHAOS_LEAF_S="3")
    slots = 1 if pool == "solo" else 2

    def at_work() -> dict[str, SessionState]:
        """The leaves whose agent has begun."""
        return {s.id: s.state for s in stack.ledger.tree(root.id) if s.activity == "counting"}

    with stack.client() as client:
        root = client.submit("branch", "6")
        stack.wait(lambda: len(at_work()) == slots, "runs in all slots")
        begun = at_work()
        if how == "remote":
            stack.app.control.shutdown()
        else:
            os.kill(worker.pid, signal.SIGTERM)
        stack.wait(lambda: not worker.alive, "its end")
        assert at_work() == dict.fromkeys(begun, SessionState.FINISHED)
        stack.start("worker", "--pool", pool)
        assert stack.answer(root) == "6"
    stack.assert_settled()


@pytest.mark.parametrize("how", ["cold", "pool"])
def test_a_worker_that_ends_in_the_middle_of_a_run_fails_it_not(how: str, make_stack: MakeStack) -> None:
    """Cold, as after its grace, or with a signal to all its processes, as systemd sends it: somebody else goes on at once."""
    stack = make_stack(lease_s="60")
    worker = stack.start_all()
    with stack.client() as client:
        session = client.submit("computing", "1")
        mark = stack.marks / f"computing-{session.id}"
        stack.wait(mark.exists, "the first try")
        if how == "cold":
            os.kill(worker.pid, signal.SIGQUIT)
            stack.wait(lambda: not worker.alive, "its end")
            stack.start("worker")
        else:
            for child in children_of(worker):
                os.kill(child, signal.SIGTERM)
        assert stack.answer(session, timeout_s=30) == "1"
        (run,) = stack.ledger.runs(session.id)
        assert (run.attempt, run.failures, run.died) == (2, 0, 0)
    stack.assert_settled()
