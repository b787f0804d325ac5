"""A worker that is asked to end gives back what it has taken, whatever its pool."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from orchestrator.dispatch import build_celery
from orchestrator.ledger import SessionState

from .stack import Stack, children_of, long, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]


@pytest.mark.parametrize("pool", [long("prefork"), "threads", long("solo")])
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


@pytest.mark.parametrize(
    ("pool", "how"),
    [("prefork", "remote"), ("solo", "TERM"), long("prefork", "TERM"), long("threads", "TERM")],
)
def test_no_run_begins_once_a_worker_is_to_end(pool: str, how: str, make_stack: Callable[..., Stack]) -> None:
    """What is at work ends; what is ready stays so for other workers, whoever asked this one to end."""
    stack = make_stack(remote_control="1", lease_s="60")
    stack.start_all(but="worker")
    worker = stack.start("worker", "--pool", pool, CHAOS_LEAF_S="3")
    stack.wait_ready()
    slots = 1 if pool == "solo" else 2

    def at_work() -> dict[str, SessionState]:
        """The leaves whose agent has begun."""
        return {s.id: s.state for s in stack.ledger.tree(root.id) if s.activity == "counting"}

    with stack.client() as client:
        root = client.submit("branch", "6")
        wait_until(lambda: len(at_work()) == slots, "runs in all slots", explain=stack.logs)
        begun = at_work()
        if how == "remote":
            build_celery(stack.settings).control.shutdown()
        else:
            os.kill(worker.pid, signal.SIGTERM)
        wait_until(lambda: not worker.alive, "its end", explain=stack.logs)
        assert at_work() == dict.fromkeys(begun, SessionState.FINISHED)
        stack.start("worker", "--pool", pool)
        assert stack.answer(root) == "6"
    stack.assert_settled()


@pytest.mark.parametrize("how", ["cold", "pool"])
def test_a_worker_that_ends_in_the_middle_of_a_run_fails_it_not(
    how: str, make_stack: Callable[..., Stack]
) -> None:
    """Cold, as after its grace, or with a signal to all its processes, as systemd sends it: somebody else goes on at once."""
    stack = make_stack(lease_s="60")
    stack.start_all()
    (worker,) = (process for process in stack.running if process.name == "worker")
    with stack.client() as client:
        session = client.submit("computing", "1")
        mark = stack.marks / f"computing-{session.id}"
        wait_until(mark.exists, "the first try", explain=stack.logs)
        if how == "cold":
            os.kill(worker.pid, signal.SIGQUIT)
            wait_until(lambda: not worker.alive, "its end", explain=stack.logs)
            stack.start("worker")
        else:
            for child in children_of(worker):
                os.kill(child, signal.SIGTERM)
        assert stack.answer(session, timeout_s=30) == "1"
        (run,) = stack.ledger.runs(session.id)
        assert (run.attempt, run.failures, run.died) == (2, 0, 0)
    stack.assert_settled()
