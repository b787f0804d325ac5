"""Flower beside a stack: its own API shows one task for each run, with what people look for."""

from __future__ import annotations

import ast
import base64
import json
import urllib.request
from typing import Any

import pytest

from orchestrator.ids import run_id
from orchestrator.worker.execution.task_events import task_id_of
from tests.acceptance.conftest import Terminal, wait_until
from tests.ports import free_port

pytestmark = pytest.mark.acceptance

AGENTS = """
from orchestrator import agent


@agent("lead", role="coordinator")
def lead(ctx):
    if ctx.cause == "start":
        ctx.delegate("worker", "fine")
        ctx.delegate("worker", "broken")
        ctx.wait_for("all")
        return "waiting"
    return "done"


@agent("worker")
def worker(ctx):
    if ctx.prompt == "broken":
        raise ValueError("nothing to work with")
    return "worked"
"""
USER = "someone:secret"


class Flower:
    """Flower's HTTP API, behind its password."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}"
        self._headers = {"Authorization": f"Basic {base64.b64encode(USER.encode()).decode()}"}

    def get(self, path: str) -> Any:
        """The document at a path; None while there is none."""
        try:
            request = urllib.request.Request(self._base + path, headers=self._headers)
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.load(answer)
        except OSError:
            return None

    def page(self, path: str) -> str:
        """The text of a page."""
        request = urllib.request.Request(self._base + path, headers=self._headers)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return str(answer.read().decode())

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Every task that it has heard of, by id."""
        return self.get("/api/tasks") or {}


def test_flower_shows_one_task_for_each_run(terminal: Terminal) -> None:
    """By its agent, session, run, cause, runtime and outcome; a child names the runs that it comes from."""
    stack = terminal.serve(AGENTS, "--concurrency 1")
    port = free_port()
    terminal.start(f"celery -A orchestrator flower --port={port}", FLOWER_BASIC_AUTH=USER)
    flower = Flower(port)
    wait_until(lambda: (flower.get("/workers?json=1") or {}).get("data"), "Flower to hear of the worker")
    with terminal.client() as client:
        root = client.submit("lead", "go")
        assert root.result(timeout_s=60) == "done"
        sessions = {session.id: session for session in client.tree(root.id)}
        runs = {task_id_of(run.id): run for session in sessions for run in client.runs(session)}
    assert len(runs) == 4
    wait_until(
        lambda: sum("runtime" in t or t.get("exception") for t in flower.tasks().values()) >= len(runs),
        f"{len(runs)} tasks with an end",
    )
    wait_until(
        lambda: all(t["state"] in {"SUCCESS", "FAILURE"} for t in flower.tasks().values()), "their ends"
    )
    shown = flower.tasks()
    assert shown.keys() == runs.keys()
    first = task_id_of(run_id(root.id, 1))
    for task_id, task in shown.items():
        run, session = runs[task_id], sessions[runs[task_id].session]
        assert ast.literal_eval(task["kwargs"]) == {
            "agent": session.agent,
            "session": session.id,
            "run": run.id,
            "cause": run.cause,
        }
        expected = "start_session" if run.cause == "start" else "resume_session"
        assert task["name"] == f"orchestrator.{expected}"
        assert task["worker"] == run.worker
        if run.state == "failed":
            assert (task["state"], task["result"]) == ("FAILURE", None)
            assert "ValueError: nothing to work with" in task["exception"]
            assert 'raise ValueError("nothing to work with")' in task["traceback"]
        else:
            assert task["state"] == "SUCCESS"
            assert task["result"] in {"idle", "finished"}
            assert 0 <= task["runtime"] < 60
        family = (task.get("parent_id"), task.get("root_id"))
        assert family == ((first, first) if session.parent else (None, None))
    assert 'data-column="kwargs"' in flower.page("/tasks"), (
        "the list shows them, too, and not only the page of a task"
    )
    causes = sorted(ast.literal_eval(task["kwargs"])["cause"] for task in shown.values())
    assert causes == ["callbacks", "start", "start", "start"]
    assert stack.interrupt() == 0
