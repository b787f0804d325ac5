"""What is seen of a run that fails, in Celery's events, in the logs and in the commands; on a real stack."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.client.client import SessionHandle
from orchestrator.errors import SessionFailed
from orchestrator.ids import run_id
from orchestrator.ledger import SessionState
from orchestrator.worker.execution.task_events import task_id_of as run_task_id

from .events import events_of
from .stack import MakeStack, Stack

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


def test_a_run_whose_agent_raised_is_a_failure_for_celery(stack: Stack) -> None:
    """With the agent's error and traceback; the message is done, and nothing is stored of it."""
    with events_of(stack) as events, stack.client() as client:
        session = client.submit("broken", "{")
        with pytest.raises(SessionFailed, match="JSONDecodeError"):
            stack.answer(session)
        run = run_id(session.id, 1)
        failed = events.wait_for("task-failed", run, stack)
        assert "JSONDecodeError" in failed["exception"]
        assert "in broken" in failed["traceback"]
        assert "task-succeeded" not in events.of(run)
        assert stack.redis.get(f"celery-task-meta-{run_task_id(run)}") is None
        stack.wait(lambda: not stack.redis.hlen("unacked"), "an acknowledgement")


def test_a_run_that_is_tried_again_is_a_retry_for_celery(stack: Stack) -> None:
    with events_of(stack) as events, stack.client() as client:
        session = client.submit("stumbler", "go")
        assert stack.answer(session) == "1"
        run = run_id(session.id, 1)
        for attempt in ("attempt 1", "attempt 2"):
            # A message that came twice may have been refused between them.
            stack.wait(
                lambda attempt=attempt: events.says("task-retried", run, attempt), attempt, timeout_s=60
            )
        assert "task-failed" not in events.of(run)


def test_the_traceback_of_a_failing_agent_is_in_the_log_of_its_worker(stack: Stack) -> None:
    with stack.client() as client:
        session = client.submit("broken", "{")
        with pytest.raises(SessionFailed):
            stack.answer(session)
    (line,) = logged(stack, session, "agent-failed")
    assert "in broken" in line["exception"]
    assert "JSONDecodeError" in line["exception"]


def test_an_agents_own_log_lines_say_for_what_it_worked(stack: Stack) -> None:
    """Those of its thread, of its tasks, and of threads that it gave its context."""
    with stack.client() as client:
        session = client.submit("talkative", "go")
        stack.answer(session)
    lines = {line["event"]: line for line in logged(stack, session, logger="crew")}
    assert sorted(lines) == ["from a thread", "from the agent"]
    for line in lines.values():
        assert (line["agent"], line["run"]) == ("talkative", run_id(session.id, 1))


def test_a_wait_outlasts_those_who_wait(stack: Stack) -> None:
    """It is in nobody's memory: the worker, the reaper and the server itself may be other ones by its end."""
    with stack.client() as client:
        session = client.submit("postponed", "4")
        stack.wait(lambda: session.session().trouble, "a first try", timeout_s=60)
        (run,) = stack.ledger.runs(session.id)
        stack.replace("reaper")
        stack.replace("worker")
        stack.server.kill()
        stack.server.start()
        stack.wait_ready()
        assert stack.answer(session) == "1"
        (done,) = stack.ledger.runs(session.id)
    assert (done.attempt, done.failures) == (2, 1)
    assert done.started_ms >= run.claimable_ms == run.tries[0].ended_ms + 4000


def test_a_run_that_kills_its_process_is_seen_at_once_and_given_up(make_stack: MakeStack) -> None:
    """Not when its lease has passed, 20 times; and whoever asks meanwhile is told."""
    stack = make_stack(lease_s="60", sweep_interval_s="0.15")
    stack.start_all()
    troubles: set[str] = set()
    with events_of(stack) as events, stack.client() as client:
        session = client.submit("killer", "7")

        def is_over() -> bool:
            now = session.session()
            troubles.add(now.trouble)
            return now.state is SessionState.FAILED

        stack.wait(is_over, "its end", timeout_s=50)
        reason = session.session().reason
        assert reason == "its worker process died 3 times, at last with exitcode 7"
        assert "attempt 1: its worker process died: exitcode 7" in troubles
        tries = [event.text for event in client.history(session.id) if event.what == "attempt"]
        assert len(tries) == 3
        assert all("ended with its worker process" in text and "exitcode 7" in text for text in tries)
        failed = events.wait_for("task-failed", run_id(session.id, 1), stack)
        assert "exitcode 7" in failed["exception"]
    # The pool is whole again, and the message of the run is nobody's any more.
    with stack.client() as client:
        assert stack.answer(client.submit("leaf", "1")) == "1"
    stack.assert_settled()


def logged(
    stack: Stack, session: SessionHandle, event: str = "", *, logger: str = ""
) -> list[dict[str, Any]]:
    """What workers have written about a session."""
    logs = {process.log for process in stack.running if process.name == "worker"}
    lines = [json.loads(x) for log in logs for x in log.read_text().splitlines() if x.startswith("{")]
    return [
        line
        for line in lines
        if line.get("session") == session.id
        and event in ("", line["event"])
        and logger in ("", line.get("logger"))
    ]
