"""A structured task from a file to a typed completion at the parent, through two levels, on a stack from the terminal."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Terminal

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

AGENTS = """
from orchestrator import Completion, agent

@agent("chief", role="orchestrator")
def chief(ctx):
    if ctx.cause == "start":
        ctx.delegate("lead", task=ctx.task)
        return ""
    got = ctx.callbacks[0].completion
    return Completion(status=got.status, result=f"{got.quality_metrics[0].name} {got.quality_metrics[0].text}",
                      acceptance_criteria_met=got.acceptance_criteria_met)

@agent("lead", role="coordinator")
def lead(ctx):
    if ctx.cause == "start":
        ctx.delegate("coder", task=ctx.task, time_limit_s=120)
        return ""
    return ctx.callbacks[0].completion

@agent("coder")
def coder(ctx):
    ctx.status(50, "coding", metrics={"test-coverage": "80%"})
    task = ctx.task
    assert task.objectives[0].text in ctx.prompt
    return Completion(
        status="partial-success",
        summary="half of it",
        acceptance_criteria_met=[{"name": c.text, "met": n == 0} for n, c in enumerate(task.acceptance_criteria)],
        quality_metrics=[{"name": m.name, "text": "81%"} for m in task.success_criteria],
    )
"""
BY_CELERY = """
from orchestrator import app

sent = app.send_task("orchestrator.start_session", kwargs={
    "agent": "chief",
    "task": {"title": "By Celery", "description": "Make it quick.", "objectives": ["halve its time"],
             "acceptance_criteria": ["all tests pass"], "success_criteria": [{"name": "test-coverage", "text": ">=80%"}]},
    "priority": "critical", "expires_s": 600, "time_limit_s": 300,
    "retry_policy": {"max_attempts": 7, "backoff_strategy": "linear", "timeout_seconds": 60},
})
print(sent.get(timeout=60))
"""
TASK = """
[task]
title = "Quick parser"
description = "Make the parser quick."
objectives = ["halve its time"]
acceptance_criteria = ["all tests pass", "below 80 ms"]
success_criteria = [{name = "test-coverage", text = ">=80%"}]
"""


def test_from_a_file_to_a_completion_at_the_parent_through_two_levels(terminal: Terminal) -> None:
    (terminal.folder / "task.toml").write_text(TASK)
    terminal.serve(AGENTS, "--concurrency 2")
    said = terminal.must("orchestra submit chief --file task.toml --priority high --wait")
    assert said.strip() == "test-coverage 81%"
    with terminal.client() as client:
        (root,) = client.sessions()
        assert root.title == "Quick parser"
        done = client.completion(root.id)
        assert done.status == "partial-success"
        assert [(c.name, c.met) for c in done.acceptance_criteria_met] == [
            ("all tests pass", True),
            ("below 80 ms", False),
        ]
        assert [session.depth for session in client.tree(root.id)] == [0, 1, 2]
    (terminal.folder / "send.py").write_text(BY_CELERY)
    assert terminal.must("python send.py").strip() == "test-coverage 81%"
    with terminal.client() as client:
        sent = client.sessions()[0]
        assert (sent.title, sent.priority) == ("By Celery", "critical")
        assert client.completion(sent.id).status == "partial-success"
    wrong = terminal.run("orchestra submit chief --file mine.py")
    assert wrong.returncode == 2
    assert "name it .xml, .json or .toml" in wrong.stderr
