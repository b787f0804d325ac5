"""Tasks that wait for other tasks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

import pytest

from orchestrator.envelope.bodies import Dependency, Task, TaskDelegation
from orchestrator.ids import new_message_id
from orchestrator.ledger import ClaimedRun, Session
from orchestrator.redisdb import keys
from orchestrator.router.delayed.dependencies import BlockedTask
from orchestrator.router.received import ReceivedMessage
from orchestrator.router.router import Router
from tests.clock import At
from tests.integration.router.conftest import end_run
from tests.kit import Kit

CONVERSATION, FIRST = new_message_id(), new_message_id()


def publish(
    kit: Kit, task_id: str, *waits_for: str, kind: Literal["blocks-on", "depends-on"] = "depends-on"
) -> None:
    """An external program's task that waits for others."""
    dependencies = tuple(Dependency(task_id=other, type=kind) for other in waits_for)
    body = TaskDelegation(
        task=Task(task_id=task_id, title=task_id, description="do", dependencies=dependencies)
    )
    # The conversation was begun before: a chain of messages that nobody knows is refused.
    kit.redis.hset(keys.conversation(0, CONVERSATION), mapping={"root": FIRST, "party:partner": "1"})
    kit.post(body, sender="partner", recipient="reviewer", correlation=CONVERSATION, chain=(FIRST,))


def sessions(kit: Kit) -> dict[str, Session]:
    """The sessions by the title of their task."""
    return {session.title: session for session in kit.ledger.roots(0)}


def end(kit: Kit, title: str, status: Literal["completed", "failed"] = "completed") -> None:
    """The session of a task ends."""
    finish(kit, sessions(kit)[title].id, status)


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


def building(kit: Kit, kind: Literal["blocks-on", "depends-on"] = "depends-on") -> Router:
    """A router that has begun a build, and holds a test that waits for it."""
    router = kit.router()
    publish(kit, "build")
    publish(kit, "test", "build", kind=kind)
    route(router)
    return router


@pytest.mark.parametrize("kind", ["blocks-on", "depends-on"])
def test_a_task_starts_when_those_it_waits_for_are_completed(
    kit: Kit, kind: Literal["blocks-on", "depends-on"]
) -> None:
    """It is held meanwhile, for whichever of the two reasons, and released at its priority."""
    router = building(kit, kind)
    assert set(sessions(kit)) == {"build"}
    end(kit, "build")
    route(router, lambda: "test" in sessions(kit))
    assert set(sessions(kit)) == {"build", "test"}
    assert [d.agent for d, _ in kit.sent.runs] == ["reviewer"]


def test_a_task_may_wait_for_several_one_after_the_other(kit: Kit) -> None:
    """Each that is completed is one less to wait for; the last one lets it start."""
    router = building(kit)
    publish(kit, "ship", "build", "test")
    route(router)
    end(kit, "build")
    route(router, lambda: "test" in sessions(kit))
    end(kit, "test")
    route(router, lambda: "ship" in sessions(kit))
    assert [received for received in kit.dead() if received.type == "task-delegation"] == []


def test_a_failed_dependency_fails_the_task(kit: Kit) -> None:
    """The reason names it."""
    router = building(kit)
    end(kit, "build", "failed")
    route(router, lambda: any(dead.type == "task-delegation" for dead in kit.dead()))
    (received,) = [dead for dead in kit.dead() if dead.type == "task-delegation"]
    assert (received.rule, received.reason) == ("dependency-failed", "it depends on build, which failed")


def test_a_failed_dependency_can_be_ignored(kit: Kit) -> None:
    """By a setting, the task starts anyway."""
    kit = kit.beside(failed_dependency="ignore")
    router = building(kit)
    end(kit, "build", "failed")
    route(router, lambda: "test" in sessions(kit))
    assert set(sessions(kit)) == {"build", "test"}


def test_a_circle_is_refused_at_once(kit: Kit) -> None:
    """The task that closes it is refused, whatever its length; itself is a circle too."""
    router = kit.router()
    publish(kit, "self", "self")
    publish(kit, "a", "b")
    publish(kit, "b", "c")
    publish(kit, "c", "a")
    route(router)
    reasons = [received.reason for received in kit.dead() if received.rule == "dependency-cycle"]
    assert [reason.partition(": ")[2].partition(";")[0] for reason in reasons] == [
        "self → self",
        "c → a → b → c",
    ]
    assert sessions(kit) == {}


def test_an_unknown_task_is_waited_for_until_the_timeout(kit: Kit) -> None:
    """Then the attempt has failed; when the unknown one comes in time, all is well."""
    publish(kit, "late", "nobody")
    now_ms = kit.now_ms
    kit.route("one")
    for attempt in (1, 2, 3):
        kit.wake()
        handled = kit.route(str(attempt), clock=At(now_ms + attempt * 400_000))
    assert handled.dead == 0
    kit.wake()
    kit.route("last", clock=At(now_ms + 2_000_000))
    kit.wake()
    kit.route("last", clock=At(now_ms + 3_000_000))
    assert [(received.rule, received.attempts) for received in kit.dead()] == [("timeout", 3)]


def launch_after(kit: Kit, held: ClaimedRun, *others: str, effect: str = "one") -> str:
    """What `lead` launches for `reviewer` when others are completed; the child's session."""
    return kit.assign(held, "reviewer", effect=effect, title=effect, after=others).child_id


def finish(kit: Kit, session: str, status: Literal["completed", "failed"] = "completed") -> None:
    """The session ends as its worker ends it."""
    end_run(kit, kit.claim(session), status=status)


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_the_end_of_a_task_moves_those_that_wait_for_it_at_once(
    kit: Kit, status: Literal["completed", "failed"]
) -> None:
    """No time passes on the router's clock: what moves it is the message that reports the end."""
    root = kit.send()
    router = kit.router(clock=At(kit.now_ms + 1000))
    route(router)
    lead = kit.claim(root)
    build = launch_after(kit, lead, effect="build")
    test = launch_after(kit, lead, build, effect="test")
    ship = launch_after(kit, lead, build, test, effect="ship")
    route(router)
    waiting = [kit.ledger.session(s) for s in (test, ship)]
    assert [(s.state, s.parked) for s in waiting] == [
        ("pending", f"waits for {build}"),
        ("pending", f"waits for {build}, {test}"),
    ]
    finish(kit, build, status)
    route(router)
    found = [kit.ledger.session(s) for s in (test, ship)]
    if status == "failed":
        assert [s.reason.partition(":")[0] for s in found] == ["dependency-failed"] * 2
        return
    assert [s.busy for s in found] == [True, False]
    finish(kit, test)
    route(router)
    assert (kit.ledger.session(ship).busy, kit.ledger.session(ship).parked) == (True, "")


def test_a_task_that_waits_for_one_above_it_is_refused_at_once(kit: Kit) -> None:
    """Its parent has ended when it has ended itself: neither would ever begin."""
    root = kit.send()
    router = kit.router()
    route(router)
    child = launch_after(kit, kit.claim(root), root)
    route(router)
    session = kit.ledger.session(child)
    assert (session.state, session.reason.partition(":")[0]) == ("failed", "dependency-cycle")
    assert f"{child} → {root} → {child}" in session.reason


@pytest.mark.parametrize("other_is", ["idle", "completed", "failed"])
def test_a_task_does_not_wait_for_a_session_of_another_tree(
    kit: Kit, other_is: Literal["idle", "completed", "failed"]
) -> None:
    """Neither an agent's nor an external program's, however far the other is; and nobody learns how far that is."""
    other = kit.send("other", agent="reviewer")
    root = kit.send()
    router = kit.router()
    route(router)
    if other_is != "idle":
        finish(kit, other, other_is)
    child = launch_after(kit, kit.claim(root), other)
    publish(kit, "theirs", other)
    route(router)
    why = (
        f"it depends on {other}, of another tree; a task waits only for tasks of its own tree or conversation"
    )
    session = kit.ledger.session(child)
    assert (session.state, session.reason) == ("failed", f"dependency-outside: {why}")
    refused = [(dead.rule, dead.reason) for dead in kit.dead() if dead.type == "task-delegation"]
    assert refused == [("dependency-outside", why)] * 2
    assert "theirs" not in sessions(kit)


def test_a_task_with_many_others_before_it_in_the_queue_is_not_held_up(kit: Kit) -> None:
    """What is looked at first is what something has happened for."""
    router = kit.router()
    publish(kit, "slow"), publish(kit, "quick")
    for number in range(300):
        publish(kit, f"after-slow-{number}", "slow")
    publish(kit, "after-quick", "quick")
    route(router)
    end(kit, "quick")
    began = time.monotonic()
    route(router, lambda: "after-quick" in sessions(kit))
    assert time.monotonic() - began < 5


def test_a_circle_that_two_routers_close_at_once_is_refused_by_the_next_look(kit: Kit) -> None:
    """Each had judged its task before the other wrote down that its own waits."""
    one, other = kit.router("one"), kit.router("other")
    block = one._redelivery.block

    def block_late(received: ReceivedMessage, blocked: BlockedTask) -> bool:
        publish(kit, "b", "a")
        assert other.run_once().parked == 1
        one._redelivery.block = block  # type: ignore[method-assign]
        return block(received, blocked)

    one._redelivery.block = block_late  # type: ignore[method-assign]
    publish(kit, "a", "b")
    route(one, lambda: any(received.rule == "dependency-cycle" for received in kit.dead()))
    assert sessions(kit) == {}
