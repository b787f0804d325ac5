"""An agent launches tasks that wait for each other, on a whole stack."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from orchestrator import SessionState
from tests.acceptance.conftest import Terminal, open_terminal, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

AGENTS = '''
import time
from pathlib import Path

from orchestrator import agent


@agent("planner", role="coordinator")
def planner(ctx):
    """Launches three tasks at once, of which each waits for the one before; with a failing one in the middle."""
    if ctx.cause == "start":
        ctx.wait_for("all")
        build = ctx.delegate("step", "build")
        test = ctx.delegate("step", ctx.prompt, after=[build])
        ctx.delegate("step", "ship", after=[build, test])
        return "waiting"
    return " | ".join(f"{c.title}: {c.result or c.error}" for c in sorted(ctx.all_results, key=lambda c: c.title))


@agent("step")
def step(ctx):
    """Takes its time, and writes down when it was done."""
    if ctx.prompt == "break":
        raise RuntimeError("broken")
    done = Path("done.txt")
    before = done.read_text() if done.exists() else ""
    time.sleep(0.2)
    done.write_text(before + ctx.prompt + " ")
    return before + ctx.prompt
'''


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal beside a running stack with a planner."""
    with open_terminal() as opened:
        (opened.folder / "agents.py").write_text(AGENTS)
        opened.start("orchestra up --agents agents.py").wait_for("ready after")
        yield opened


def test_tasks_run_in_the_order_that_they_depend_on(terminal: Terminal) -> None:
    """Each is held until those before it are completed; a failed one fails what depends on it."""
    done = terminal.run("orchestra submit planner test --wait")
    assert done.stdout.strip() == "build: build | ship: build test ship | test: build test"
    (terminal.folder / "done.txt").unlink()
    submitted = terminal.run("orchestra submit planner break --json")
    session = json.loads(submitted.stdout)["session"]
    with terminal.client() as client:
        wait_until(lambda: client.session(session).state is SessionState.FINISHED, "the planner's report")
        answer = client.result(session)
    broken, build, ship = answer.split(" | ")
    assert ("broken" in broken, build) == (True, "build: build")
    assert "which failed" in ship
