"""Agents that wait for each other, on a stack with one worker slot: nothing stands still, nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from orchestrator import SessionState
from tests.acceptance.conftest import Terminal, open_stack, parent_of, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

AGENTS = '''
import os
import time

from orchestrator import agent


@agent("caller", role="coordinator")
def caller(ctx):
    """Calls down to the bottom of a tree, each level while the one above waits."""
    depth = int(ctx.prompt)
    if depth == 0:
        return "bottom"
    return f"{depth} {ctx.call('caller', str(depth - 1)).result}"


@agent("waiter", role="coordinator")
def waiter(ctx):
    """Calls somebody who delegates and ends its run: what that one needs must run, too."""
    return ctx.call("lead", "2").result


@agent("lead", role="coordinator")
def lead(ctx):
    if ctx.cause == "start":
        for number in range(int(ctx.prompt)):
            ctx.delegate("asker", f"question {number}")
        ctx.wait_for("all")
        return "waiting"
    for callback in ctx.callbacks:
        if callback.kind != "completion":
            ctx.reply(callback, callback.text.upper())
    return ", ".join(sorted(c.result for c in ctx.all_results))


@agent("asker")
def asker(ctx):
    return ctx.raise_callback(ctx.prompt, "blocker", context={"pid": os.getpid()})


@agent("patient", role="coordinator")
def patient(ctx):
    return ctx.call("sleeper", "x").result


@agent("sleeper")
def sleeper(ctx):
    open("sleeper.pid", "w").write(str(os.getpid()))
    time.sleep(1000)
'''


@pytest.fixture(scope="module")
def stack() -> Iterator[Terminal]:
    """A stack with a single slot."""
    with open_stack(
        AGENTS,
        ORCHESTRA_CONCURRENCY="1",
        ORCHESTRA_STOP_GRACE_S="1",
        ORCHESTRA_LEASE_S="2",
        ORCHESTRA_HEARTBEAT_S="0.5",
        ORCHESTRA_SWEEP_INTERVAL_S="0.3",
    ) as terminal:
        yield terminal


def asleep(stack: Terminal) -> int:
    """Wait until a process of the sleeper has begun; which one."""
    file = stack.folder / "sleeper.pid"
    pid = int(wait_until(lambda: file.exists() and file.read_text(), "the sleeper"))
    file.unlink()
    return pid


def test_calls_go_down_as_far_as_they_must(stack: Terminal) -> None:
    done = stack.run("orchestra submit caller 2 --wait")
    assert (done.returncode, done.stdout.strip()) == (0, "2 1 bottom"), done.stderr


def test_a_call_runs_what_its_child_waits_for_and_questions_come_back(stack: Terminal) -> None:
    """Caller, lead, two askers that block, and the lead's resumes: all in one slot."""
    assert stack.must("orchestra submit waiter go --wait").strip() == "QUESTION 0, QUESTION 1"
    lines = (stack.folder / ".orchestra" / "_events.jsonl").read_text().splitlines()
    events = [json.loads(line)["data"] for line in lines]
    asked = [(e["from"], e["to"], e["type"]) for e in events if e["message"].startswith("question")]
    assert asked == [("asker", "lead", "blocker")] * 2
    with stack.client() as client:
        for session in client.tree(client.sessions(limit=1)[0].id):
            assert session.launched == session.delivered


def test_a_stop_ends_who_waits_and_who_is_waited_for(stack: Terminal) -> None:
    """The lent process, too, although its agent does not listen."""
    with stack.client() as client:
        root = client.submit("patient", "go").id
        pid = asleep(stack)
        client.stop(root, "enough")
        wait_until(
            lambda: all(s.state is SessionState.STOPPED for s in client.tree(root)), "the end of the tree"
        )
        wait_until(lambda: pid not in stack.processes(), "the end of the lent process")


def test_a_slot_that_dies_takes_what_it_lent_along_and_both_are_tried_again(stack: Terminal) -> None:
    with stack.client() as client:
        root = client.submit("patient", "go").id
        pid = asleep(stack)
        os.kill(parent_of(pid), signal.SIGKILL)
        wait_until(lambda: pid not in stack.processes(), "the end of the lent process")
        asleep(stack)
        client.stop(root, "enough")
        wait_until(lambda: client.session(root).state is SessionState.STOPPED, "the end")
