"""At every named place the process is killed once, between two steps; nothing is lost and nothing comes twice."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.crashpoints import POINTS
from orchestrator.ids import root_session_id

from .stack import MakeStack, Stack

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who is killed there, doing what, and what the answer is nevertheless."""

    victim: str
    agent: str = "branch"
    prompt: str = "2,2"
    answer: str = "4"


REFUSED = Plan(
    victim="router", agent="mixed", prompt="leaf usurper", answer="leaf=completed usurper=completed"
)
UNKNOWN = Plan(victim="router", agent="mixed", prompt="ghost leaf", answer="ghost=failed leaf=completed")
LOST = Plan(
    victim="reaper", agent="mixed", prompt="uprooted leaf", answer="leaf=completed uprooted=completed"
)
QUIT = Plan(victim="callbacks", agent="mixed", prompt="leaf quitter", answer="leaf=completed quitter=failed")

TALK = Plan(victim="worker", agent="mixture", prompt="caller 2 patient 1", answer="3")
TALK_PLACES = ("worker.taken#2", "worker.effect#3")

PLANS: dict[str, Plan] = {
    **{f"router.{step}": Plan(victim="router") for step in ("read", "acted", "dispatched")},
    "router.refused": REFUSED,
    "router.buried": REFUSED,
    "router.parked": UNKNOWN,
    **{f"worker.{step}": Plan(victim="worker") for step in ("claimed", "worked", "committed", "settled")},
    "worker.effect": Plan(victim="worker"),
    "worker.effect#2": Plan(victim="worker"),
    "settle.stored": Plan(victim="worker"),
    **{f"callbacks.{step}": Plan(victim="callbacks") for step in ("read", "handled")},
    "callbacks.stopped": Plan(victim="callbacks", agent="fickle", prompt="go", answer="leaf"),
    "delivery.flushed": Plan(victim="callbacks"),
    "delivery.sent": Plan(victim="callbacks"),
    "delivery.child-closed": QUIT,
    "delivery.closed": QUIT,
    "reaper.released": LOST,
    "reaper.redispatched": LOST,
    "audit.read": Plan(victim="audit"),
    "audit.written": Plan(victim="audit"),
}
#: Places that have a test of their own, below, in `test_model_agents.py` or in `tests/integration/test_notifier.py`.
APART = {
    *("submit.checked", "submit.written", "reaper.pruned", "delivery.forgotten"),
    *("reaper.submitted", "notifier.delivered"),
    *("worker.stepped", "worker.recorded"),
}


def test_every_place_is_visited(root: Path) -> None:
    """The names in the code, those that are declared, and those that are tested here are the same."""
    sources = [*root.glob("orchestrator/**/*.py"), *root.glob("workers/**/*.py")]
    named = {name for path in sources for name in re.findall(r'\bfailpoint\("([^"]+)"\)', path.read_text())}
    assert named == set(POINTS)
    assert named == {place.partition("#")[0] for place in (*PLANS, *TALK_PLACES)} | APART


@pytest.mark.kills("between two steps")
@pytest.mark.parametrize("place", PLANS)
def test_a_crash_between_two_steps_changes_nothing_in_the_end(place: str, stack: Stack) -> None:
    crash(stack, place, PLANS[place])


@pytest.mark.kills("between two steps")
@pytest.mark.parametrize("place", TALK_PLACES)
def test_a_crash_while_agents_call_and_ask_each_other_does_not_either(
    place: str, make_stack: MakeStack
) -> None:
    """With one slot, which is lent while it waits."""
    stack = make_stack(concurrency="1")
    stack.start_services()
    crash(stack, place, TALK)


def crash(stack: Stack, place: str, plan: Plan) -> None:
    """Let the victim die at a place while it does what is planned; what comes of it nevertheless."""
    victim = stack.replace(plan.victim, crash_at=place)
    stack.wait_ready()
    with stack.client() as client:
        sessions = [client.submit(plan.agent, plan.prompt)]
        # Where the reaper was there first, as it may be while the victim starts, nothing is left to die over.
        while not victim.mark.exists() and len(sessions) < 8:
            with suppress(AssertionError):
                stack.wait(victim.mark.exists, "a crash", timeout_s=15)
                break
            sessions.append(client.submit(plan.agent, plan.prompt))
        stack.wait(victim.mark.exists, f"a crash at {place}")
        if plan.victim != "worker":  # a worker replaces its processes by itself
            stack.wait(lambda: not victim.alive, "its end")
            stack.replace(plan.victim)
        stack.replace_the_dead()
        assert [stack.answer(session) for session in sessions] == [plan.answer] * len(sessions)
    stack.assert_settled()


@pytest.mark.kills("between two steps")
@pytest.mark.parametrize("place", ["submit.checked", "submit.written"])
def test_a_client_that_dies_while_submitting_submits_once(place: str, stack: Stack) -> None:
    """Submitted again under its key, it is the same session, whether or not the first try got that far."""
    before = set(stack.roots())
    process = stack.start("submit", "branch", "2,2", "--key", place, crash_at=place)
    stack.wait(process.mark.exists, f"a crash at {place}")
    stack.wait(lambda: not process.alive, "its end")
    stack.running.remove(process)
    with stack.client() as client:
        session = client.submit("branch", "2,2", key=place)
        assert stack.answer(session) == "4"
        assert set(stack.roots()) - before == {session.id}
    stack.assert_settled()


@pytest.mark.kills("between two steps")
@pytest.mark.parametrize("place", ["submit.checked", "submit.written", "settle.stored", "worker.settled"])
def test_a_bare_task_is_one_session_and_its_result_comes(place: str, stack: Stack) -> None:
    """Submitted with plain Celery; the worker dies while it writes the session down or settles its result."""
    before = set(stack.roots())
    worker = stack.replace("worker", crash_at=place)
    # What Redis hands to a worker that was just killed, before it notices, is lost to Celery.
    stack.wait_ready()
    task = stack.send("branch", "2,2")
    stack.wait(worker.mark.exists, f"a crash at {place}")
    assert task.get(timeout=120) == "4"
    assert set(stack.roots()) - before == {root_session_id(task.id)}
    stack.assert_settled()


def test_a_scheduled_session_begins_once_though_the_reaper_dies_with_it(stack: Stack) -> None:
    """The reaper dies when it has published the task-delegation; the next one finds nothing left to do."""
    reaper = stack.replace("reaper", crash_at="reaper.submitted")
    stack.wait_ready()
    with stack.client() as client:
        session = client.submit("branch", "2,2", at=timedelta(seconds=1))
        assert session.session().state == "scheduled"
        stack.wait(reaper.mark.exists, "a crash")
        stack.wait(lambda: not reaper.alive, "its end")
        stack.replace("reaper")
        assert stack.answer(session) == "4"
        assert session.session().runs >= 1
        assert client.scheduled() == []
    stack.assert_settled()


def test_a_tree_that_was_being_deleted_is_deleted_to_its_last_leaf(stack: Stack) -> None:
    """The service dies when it has deleted one child of the root, which nobody has looked below yet."""
    service = stack.replace("callbacks", crash_at="delivery.forgotten")
    stack.wait_ready()
    with stack.client() as client:
        session = client.submit("branch", "2,2,2")
        assert stack.answer(session) == "8"
        client.delete(session.id)
        stack.wait(service.mark.exists, "a crash")
        stack.wait(lambda: not service.alive, "its end")
        stack.replace("callbacks")
    stack.assert_settled()
    assert {member.state for member in stack.ledger.tree(session.id)} == {"deleted"}


def test_a_tree_that_was_being_removed_goes_entirely(make_stack: MakeStack) -> None:
    """The reaper dies after the first session; another one removes the rest, and no key is left of the tree."""
    stack = make_stack(tree_ttl_s="2")
    stack.start("worker")
    stack.start_services(but="reaper")
    reaper = stack.start("reaper", crash_at="reaper.pruned")
    stack.wait_ready()
    with stack.client() as client:
        session = client.submit("branch", "2,2")
        assert stack.answer(session) == "4"
    stack.wait(reaper.mark.exists, "a crash")
    stack.wait(lambda: not reaper.alive, "its end")
    stack.start("reaper")
    stack.wait(lambda: not list(stack.ledger.all_roots(0)), "the end of the tree")
    left = [
        key for key in stack.redis.scan_iter() if b":session:" in key or b":run:" in key or b":tree:" in key
    ]
    assert left == []
    assert stack.unrest() == []
