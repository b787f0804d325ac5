"""Tasks that wait for other tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import pytest

from orchestrator.envelope.model import Dependency, Task, TaskDelegation
from orchestrator.ids import derived_uuid, new_message_id, root_session_id
from orchestrator.ledger import Outcome, Session
from orchestrator.ledger.model import Outgoing
from orchestrator.letters import Thread
from orchestrator.router import Router
from orchestrator.settings import load_settings
from tests.integration.router.conftest import At, Stack

CONVERSATION, FIRST = new_message_id(), new_message_id()


def publish(
    stack: Stack, task_id: str, *waits_for: str, kind: Literal["blocks-on", "depends-on"] = "depends-on"
) -> None:
    """A foreign program's task that waits for others."""
    dependencies = tuple(Dependency(task_id=other, type=kind) for other in waits_for)
    body = TaskDelegation(
        task=Task(task_id=task_id, title=task_id, description="do", dependencies=dependencies)
    )
    data = stack.envelope(
        body, sender="partner", recipient="reviewer", correlation=CONVERSATION, chain=(FIRST,)
    )
    stack.publish(data, "task-delegation", "high")


def sessions(stack: Stack) -> dict[str, Session]:
    """The sessions by the title of their task."""
    return {session.title: session for session in stack.parts.ledger.roots(0)}


def end(stack: Stack, title: str, status: Literal["completed", "failed"] = "completed") -> None:
    """The session of a task ends."""
    session = sessions(stack)[title]
    held = stack.parts.ledger.claim(session.run, "claim", session_id=session.id, worker="w")
    assert held is not None
    report = Outgoing(data=b"<x/>", type="message", priority="low", message_id="m")
    stack.parts.ledger.commit(
        held.claim, Outcome(status=status, text="over"), make_envelope=lambda: report, expect_over=True
    )


def route(router: Router, until: Callable[[], bool] | None = None) -> None:
    """Let the router work until a condition holds; without one, until nothing is left in the streams."""
    deadline = time.monotonic() + 10
    while True:
        handled = router.run_once(block_ms=20)
        if until is None and handled == type(handled)():
            return
        if until is not None and until():
            return
        assert time.monotonic() < deadline, "the condition did not come about in time"


@pytest.mark.parametrize("kind", ["blocks-on", "depends-on"])
def test_a_task_starts_when_those_it_waits_for_are_completed(
    stack: Stack, kind: Literal["blocks-on", "depends-on"]
) -> None:
    """It is held meanwhile, for whichever of the two reasons, and released at its priority."""
    router = stack.router()
    publish(stack, "build")
    publish(stack, "test", "build", kind=kind)
    route(router)
    assert set(sessions(stack)) == {"build"}
    end(stack, "build")
    route(router, lambda: "test" in sessions(stack))
    assert set(sessions(stack)) == {"build", "test"}
    assert [d.agent for d, _ in stack.sent.runs] == ["reviewer", "reviewer"]


def test_a_task_may_wait_for_several_one_after_the_other(stack: Stack) -> None:
    """Each that is completed is one less to wait for; the last one lets it start."""
    router = stack.router()
    publish(stack, "build")
    publish(stack, "test", "build")
    publish(stack, "ship", "build", "test")
    route(router)
    end(stack, "build")
    route(router, lambda: "test" in sessions(stack))
    end(stack, "test")
    route(router, lambda: "ship" in sessions(stack))
    assert [letter for letter in stack.dead() if letter.type == "task-delegation"] == []


def test_a_failed_dependency_fails_the_task(stack: Stack) -> None:
    """The reason names it."""
    router = stack.router()
    publish(stack, "build")
    publish(stack, "test", "build")
    route(router)
    end(stack, "build", "failed")
    route(router, lambda: any(dead.type == "task-delegation" for dead in stack.dead()))
    (letter,) = [dead for dead in stack.dead() if dead.type == "task-delegation"]
    assert (letter.rule, letter.reason) == ("dependency-failed", "it depends on build, which failed")


def test_a_failed_dependency_can_be_ignored(stack: Stack) -> None:
    """By a setting, the task starts anyway."""
    stack.settings = load_settings(
        redis_url=stack.settings.redis_url, data=stack.settings.data, failed_dependency="ignore"
    )
    router = stack.router()
    publish(stack, "build")
    publish(stack, "test", "build")
    route(router)
    end(stack, "build", "failed")
    route(router, lambda: "test" in sessions(stack))
    assert set(sessions(stack)) == {"build", "test"}


def test_a_circle_is_refused_at_once(stack: Stack) -> None:
    """The task that closes it is refused, whatever its length; itself is a circle too."""
    router = stack.router()
    publish(stack, "self", "self")
    publish(stack, "a", "b")
    publish(stack, "b", "c")
    publish(stack, "c", "a")
    route(router)
    reasons = [letter.reason for letter in stack.dead() if letter.rule == "dependency-cycle"]
    assert [reason.partition(": ")[2].partition(";")[0] for reason in reasons] == [
        "self → self",
        "c → a → b → c",
    ]
    assert sessions(stack) == {}


def test_an_unknown_task_is_waited_for_until_the_timeout(stack: Stack) -> None:
    """Then the attempt has failed; when the unknown one comes in time, all is well."""
    publish(stack, "late", "nobody")
    now_ms = int(stack.redis.time()[0]) * 1000
    stack.router("one").run_once()
    for attempt in (1, 2, 3):
        stack.wake()
        handled = stack.router(str(attempt), clock=At(now_ms + attempt * 400_000)).run_once()
    assert handled.dead == 0
    stack.wake()
    stack.router("last", clock=At(now_ms + 2_000_000)).run_once()
    stack.wake()
    stack.router("last", clock=At(now_ms + 3_000_000)).run_once()
    assert [(letter.rule, letter.attempts) for letter in stack.dead()] == [("timeout", 3)]


def test_tasks_of_our_own_wait_too_and_show_what_for(stack: Stack) -> None:
    """A session that is held is pending, and says what it waits for."""
    first = stack.submit("first", agent="reviewer")
    router = stack.router()
    route(router)
    second = root_session_id("second")
    thread = Thread(correlation=derived_uuid("conversation", second))
    envelope = stack.parts.letters.delegation(
        sender="operator",
        recipient="reviewer",
        task_id=second,
        title="second",
        description="then",
        thread=thread,
        after=(first,),
    )
    stack.parts.ledger.submit(
        second, agent="reviewer", prompt="then", envelope=envelope, correlation=thread.correlation
    )
    route(router)
    held = stack.parts.ledger.session(second)
    assert (held.state, held.parked) == ("pending", f"waits for {first}")
    run = stack.parts.ledger.session(first)
    claimed = stack.parts.ledger.claim(run.run, "claim", session_id=first, worker="w")
    assert claimed is not None
    report = Outgoing(data=b"<x/>", type="message", priority="low", message_id="m")
    stack.parts.ledger.commit(
        claimed.claim, Outcome(status="completed", text="x"), make_envelope=lambda: report, expect_over=True
    )
    route(router, lambda: stack.parts.ledger.session(second).busy)
    assert (stack.parts.ledger.session(second).busy, stack.parts.ledger.session(second).parked) == (True, "")
