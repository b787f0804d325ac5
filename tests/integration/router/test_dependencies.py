"""Tasks that wait for other tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import pytest

from orchestrator.config.settings import load_settings
from orchestrator.envelope.bodies import Dependency, Task, TaskDelegation
from orchestrator.ids import new_message_id
from orchestrator.ledger import ClaimedRun, EndedRun, Outcome, Session
from orchestrator.messages.factory import Thread
from orchestrator.redisdb import keys
from orchestrator.router.delayed.dependencies import BlockedTask
from orchestrator.router.received import ReceivedMessage
from orchestrator.router.router import Router
from tests.integration.router.conftest import At, Stack

CONVERSATION, FIRST = new_message_id(), new_message_id()


def publish(
    stack: Stack, task_id: str, *waits_for: str, kind: Literal["blocks-on", "depends-on"] = "depends-on"
) -> None:
    """An external program's task that waits for others."""
    dependencies = tuple(Dependency(task_id=other, type=kind) for other in waits_for)
    body = TaskDelegation(
        task=Task(task_id=task_id, title=task_id, description="do", dependencies=dependencies)
    )
    # The conversation was begun before: a chain of messages that nobody knows is refused.
    stack.redis.hset(keys.conversation(0, CONVERSATION), mapping={"root": FIRST, "party:partner": "1"})
    data = stack.envelope(
        body, sender="partner", recipient="reviewer", correlation=CONVERSATION, chain=(FIRST,)
    )
    stack.publish(data, "task-delegation", "high")


def sessions(stack: Stack) -> dict[str, Session]:
    """The sessions by the title of their task."""
    return {session.title: session for session in stack.parts.ledger.roots(0)}


def end(stack: Stack, title: str, status: Literal["completed", "failed"] = "completed") -> None:
    """The session of a task ends."""
    finish(stack, sessions(stack)[title].id, status)


def route(router: Router, until: Callable[[], bool] | None = None) -> None:
    """Let the router work until a condition holds; without one, until nothing is left in the streams."""
    deadline = time.monotonic() + 40
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
    assert [d.agent for d, _ in stack.sent.runs] == ["reviewer"]


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
    assert [received for received in stack.dead() if received.type == "task-delegation"] == []


def test_a_failed_dependency_fails_the_task(stack: Stack) -> None:
    """The reason names it."""
    router = stack.router()
    publish(stack, "build")
    publish(stack, "test", "build")
    route(router)
    end(stack, "build", "failed")
    route(router, lambda: any(dead.type == "task-delegation" for dead in stack.dead()))
    (received,) = [dead for dead in stack.dead() if dead.type == "task-delegation"]
    assert (received.rule, received.reason) == ("dependency-failed", "it depends on build, which failed")


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
    reasons = [received.reason for received in stack.dead() if received.rule == "dependency-cycle"]
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
    assert [(received.rule, received.attempts) for received in stack.dead()] == [("timeout", 3)]


def launch_after(stack: Stack, held: ClaimedRun, *others: str, effect: str = "one") -> str:
    """What `lead` launches for `reviewer` when others are completed; the child's session."""
    return stack.launch(held, "reviewer", effect=effect, title=effect, after=others).child_id


def finish(stack: Stack, session: str, status: Literal["completed", "failed"] = "completed") -> None:
    """The session ends as its worker ends it: with the envelope that reports it."""
    held, messages = stack.claim(session), stack.parts.message_factory
    thread = Thread.of(held.session)
    if status == "completed":
        report = messages.completion(
            task_id=session, sender="reviewer", recipient="lead", result="done", thread=thread
        )
    else:
        report = messages.error(sender="reviewer", recipient="lead", error="no luck", thread=thread)
    stack.parts.ledger.commit(
        EndedRun(
            held.claim, Outcome(status=status, text="over"), make_envelope=lambda: report, expect_over=True
        )
    )


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_the_end_of_a_task_moves_those_that_wait_for_it_at_once(
    stack: Stack, status: Literal["completed", "failed"]
) -> None:
    """No time passes on the router's clock: what moves it is the message that reports the end."""
    root = stack.submit()
    router = stack.router(clock=At(int(stack.redis.time()[0]) * 1000 + 1000))
    route(router)
    lead = stack.claim(root)
    build = launch_after(stack, lead, effect="build")
    test = launch_after(stack, lead, build, effect="test")
    ship = launch_after(stack, lead, build, test, effect="ship")
    route(router)
    waiting = [stack.parts.ledger.session(s) for s in (test, ship)]
    assert [(s.state, s.parked) for s in waiting] == [
        ("pending", f"waits for {build}"),
        ("pending", f"waits for {build}, {test}"),
    ]
    finish(stack, build, status)
    route(router)
    found = [stack.parts.ledger.session(s) for s in (test, ship)]
    if status == "failed":
        assert [s.reason.partition(":")[0] for s in found] == ["dependency-failed"] * 2
        return
    assert [s.busy for s in found] == [True, False]
    finish(stack, test)
    route(router)
    assert (stack.parts.ledger.session(ship).busy, stack.parts.ledger.session(ship).parked) == (True, "")


def test_a_task_that_waits_for_one_above_it_is_refused_at_once(stack: Stack) -> None:
    """Its parent has ended when it has ended itself: neither would ever begin."""
    root = stack.submit()
    router = stack.router()
    route(router)
    child = launch_after(stack, stack.claim(root), root)
    route(router)
    session = stack.parts.ledger.session(child)
    assert (session.state, session.reason.partition(":")[0]) == ("failed", "dependency-cycle")
    assert f"{child} → {root} → {child}" in session.reason


@pytest.mark.parametrize("other_is", ["idle", "completed", "failed"])
def test_a_task_does_not_wait_for_a_session_of_another_tree(
    stack: Stack, other_is: Literal["idle", "completed", "failed"]
) -> None:
    """Neither an agent's nor an external program's, however far the other is; and nobody learns how far that is."""
    other = stack.submit("other", agent="reviewer")
    root = stack.submit()
    router = stack.router()
    route(router)
    if other_is != "idle":
        finish(stack, other, other_is)
    child = launch_after(stack, stack.claim(root), other)
    publish(stack, "theirs", other)
    route(router)
    why = (
        f"it depends on {other}, of another tree; a task waits only for tasks of its own tree or conversation"
    )
    session = stack.parts.ledger.session(child)
    assert (session.state, session.reason) == ("failed", f"dependency-outside: {why}")
    refused = [(dead.rule, dead.reason) for dead in stack.dead() if dead.type == "task-delegation"]
    assert refused == [("dependency-outside", why)] * 2
    assert "theirs" not in sessions(stack)


def test_a_task_with_many_others_before_it_in_the_queue_is_not_held_up(stack: Stack) -> None:
    """What is looked at first is what something has happened for."""
    router = stack.router()
    publish(stack, "slow"), publish(stack, "quick")
    for number in range(300):
        publish(stack, f"after-slow-{number}", "slow")
    publish(stack, "after-quick", "quick")
    route(router)
    end(stack, "quick")
    began = time.monotonic()
    route(router, lambda: "after-quick" in sessions(stack))
    assert time.monotonic() - began < 5


def test_a_circle_that_two_routers_close_at_once_is_refused_by_the_next_look(stack: Stack) -> None:
    """Each had judged its task before the other wrote down that its own waits."""
    one, other = stack.router("one"), stack.router("other")
    block = one._redelivery.block

    def block_late(received: ReceivedMessage, blocked: BlockedTask) -> bool:
        publish(stack, "b", "a")
        assert other.run_once().parked == 1
        one._redelivery.block = block  # type: ignore[method-assign]
        return block(received, blocked)

    one._redelivery.block = block_late  # type: ignore[method-assign]
    publish(stack, "a", "b")
    route(one, lambda: any(received.rule == "dependency-cycle" for received in stack.dead()))
    assert sessions(stack) == {}
