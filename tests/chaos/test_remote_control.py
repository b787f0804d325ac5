"""Celery's revoke and rate limit, on workers that obey: they do what they say, or are refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.dispatch import RESUME_TASK, START_TASK, WORK_TASK
from orchestrator.errors import ConfigurationError
from orchestrator.ids import root_session_id
from orchestrator.ledger import SessionState
from orchestrator.worker.execution.task_events import task_id_of

from .stack import MakeStack

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]


#: One worker is there to reply.
WAIT: dict[str, Any] = {"reply": True, "timeout": 30, "limit": 1}


def said(replies: list[dict[str, dict[str, Any]]]) -> str:
    """What the one worker said."""
    ((reply,),) = [list(one.values()) for one in replies]
    return str(reply.get("ok", reply.get("error")))


def test_a_revoked_task_is_stopped_and_a_limit_is_refused(make_stack: MakeStack) -> None:
    stack = make_stack(remote_control="1", concurrency="2")
    stack.start_all()
    control = stack.app.control

    # A root at work: not without `terminate`, as Celery has it; then it ends as by `orchestra stop`.
    task = stack.send("sleeper", "work")
    session = root_session_id(task.id)
    stack.wait(lambda: stack.leases, "its run", timeout_s=40)
    assert "only with terminate=True" in said(control.revoke(task.id, **WAIT))
    assert stack.ledger.session(session).state is SessionState.RUNNING
    assert f"{session} asked" in said(control.revoke(task.id, terminate=True, **WAIT))
    with pytest.raises(Exception, match="revoked over Celery's remote control"):
        task.get(timeout=60)

    # A run by the id under which Flower shows it.
    task = stack.send("sleeper", "work")
    stack.wait(lambda: stack.leases, "its run", timeout_s=40)
    (lease,) = stack.leases
    assert "asked" in said(control.terminate(task_id_of(lease.run), **WAIT))
    stack.wait(lambda: stack.ledger.session(lease.session).state is SessionState.STOPPED, "its end")

    # A submission that is not taken yet never begins.
    assert "it is dropped when it comes" in said(control.revoke("a-task-of-mine", **WAIT))
    late = stack.send("leaf", "1", task_id="a-task-of-mine")
    stack.wait(lambda: late.state == "REVOKED", "its end", timeout_s=40)
    assert not stack.ledger.find([root_session_id("a-task-of-mine")])

    # A rate is not limited: what a worker holds back would keep it from hearing a wake-up. Nor is the time of one.
    for command, name, limits in (
        ("rate_limit", WORK_TASK, {"rate_limit": "1/h"}),
        ("rate_limit", START_TASK, {"rate_limit": "1/h"}),
        ("rate_limit", RESUME_TASK, {"rate_limit": "1/h"}),
        ("time_limit", WORK_TASK, {"soft": 1, "hard": 1}),
        ("time_limit", RESUME_TASK, {"soft": 1, "hard": 1}),
    ):
        arguments = {"task_name": name, **limits}
        refused = said(control.broadcast(command, arguments=arguments, **WAIT))
        assert "orchestra agents limit AGENT N" in refused or "run_time_limit_s" in refused
        with pytest.raises(ConfigurationError, match=name):
            getattr(control, command)(name, 1)
    assert "time limits set successfully" in said(control.time_limit(START_TASK, soft=60, hard=90, **WAIT))
    assert stack.send("leaf", "1").get(timeout=60) == "1"


def test_where_workers_obey_nobody_it_is_said(make_stack: MakeStack) -> None:
    stack = make_stack()
    app = stack.app
    for call in (
        lambda: app.control.revoke("x"),
        lambda: app.control.terminate("x"),
        lambda: app.AsyncResult("x").revoke(),
        lambda: app.control.rate_limit("anothers.task", "1/h"),
        lambda: app.control.time_limit(START_TASK, 1),
        lambda: app.control.inspect().active(),
        app.control.ping,
        app.control.shutdown,
    ):
        with pytest.raises(ConfigurationError, match="do not obey Celery's remote control"):
            call()
    # What Flower and a worker that starts send, and do without an answer.
    with app.connection() as connection:
        app.events.Receiver(connection, handlers={}).wakeup_workers()
    app.control.enable_events()
    app.control.inspect(timeout=0.1).hello("worker@here")
