"""At every named place the process is killed once, between two steps; nothing is lost and nothing comes twice."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.crashpoints import POINTS
from orchestrator.dispatch import START_TASK, build_celery
from orchestrator.ids import root_session_id

from .stack import Stack, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who is killed there, doing what, and what the answer is nevertheless."""

    victim: str
    agent: str = "branch"
    prompt: str = "2,2"
    answer: str = "4"
    settings: tuple[tuple[str, str], ...] = ()


TREE = Plan(victim="")
REFUSED = Plan(
    victim="router", agent="mixed", prompt="leaf usurper", answer="leaf=completed usurper=completed"
)
UNKNOWN = Plan(victim="router", agent="mixed", prompt="ghost leaf", answer="ghost=failed leaf=completed")
LOST = Plan(victim="reaper", agent="mixed", prompt="fragile leaf", answer="fragile=completed leaf=completed")
QUIT = Plan(victim="callbacks", agent="mixed", prompt="leaf quitter", answer="leaf=completed quitter=failed")

#: Calls, questions and replies; with one slot, which is lent while it waits.
TALK = Plan(
    victim="worker",
    agent="mixture",
    prompt="caller 2 patient 1",
    answer="3",
    settings=(("concurrency", "1"),),
)

PLANS: dict[str, Plan] = {
    **{f"router.{step}": Plan(victim="router") for step in ("read", "acted", "dispatched")},
    "router.refused": REFUSED,
    "router.buried": REFUSED,
    "router.parked": UNKNOWN,
    **{f"worker.{step}": Plan(victim="worker") for step in ("claimed", "worked", "committed", "settled")},
    "worker.effect": Plan(victim="worker"),
    "worker.effect#2": Plan(victim="worker"),
    "worker.taken": TALK,
    "worker.taken#2": TALK,
    "worker.effect#3": TALK,
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
#: Places that have a test of their own below.
APART = {"submit.checked", "submit.written", "reaper.pruned"}

MakeStack = Callable[..., Stack]


def test_every_place_is_visited(root: Path) -> None:
    """The names in the code, those that are declared, and those that are tested here are the same."""
    sources = [*root.glob("orchestrator/**/*.py"), *root.glob("workers/**/*.py")]
    named = {name for path in sources for name in re.findall(r'\breach\("([^"]+)"\)', path.read_text())}
    assert named == set(POINTS)
    assert named == {place.partition("#")[0] for place in PLANS} | APART


@pytest.mark.parametrize("place", PLANS)
def test_a_crash_between_two_steps_changes_nothing_in_the_end(place: str, make_stack: MakeStack) -> None:
    plan = PLANS[place]
    stack = make_stack(**dict(plan.settings))
    stack.start_all(but=plan.victim)
    victim = stack.start(plan.victim, crash_at=place)
    stack.wait_ready()
    with stack.client() as client:
        session = client.submit(plan.agent, plan.prompt)
        wait_until(stack.mark(place).exists, f"a crash at {place}", explain=stack.logs)
        if plan.victim != "worker":  # a worker replaces its processes by itself
            wait_until(lambda: not victim.alive, "its end")
            stack.start(plan.victim)
        try:
            answer = session.result(timeout_s=40)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {stack.unrest()}{stack.logs()}") from None
    assert answer == plan.answer
    stack.assert_settled()


@pytest.mark.parametrize("place", ["submit.checked", "submit.written"])
def test_a_client_that_dies_while_submitting_submits_once(place: str, make_stack: MakeStack) -> None:
    """Submitted again under its key, it is the same session, whether or not the first try got that far."""
    stack = make_stack()
    stack.start_all()
    stack.wait_ready()
    client_process = stack.start("submit", "branch", "2,2", "--key", "mine", crash_at=place)
    wait_until(stack.mark(place).exists, f"a crash at {place}", explain=stack.logs)
    wait_until(lambda: not client_process.alive, "its end")
    with stack.client() as client:
        session = client.submit("branch", "2,2", key="mine")
        assert session.result(timeout_s=40) == "4"
        assert [root.id for root in client.sessions()] == [session.id]
    stack.assert_settled()


@pytest.mark.parametrize("place", ["submit.checked", "submit.written", "settle.stored", "worker.settled"])
def test_a_bare_task_is_one_session_and_its_result_comes(place: str, make_stack: MakeStack) -> None:
    """Submitted with plain Celery; the worker dies while it writes the session down or settles its result."""
    stack = make_stack()
    stack.start_all(but="worker")
    stack.start("worker", crash_at=place)
    stack.wait_ready()
    app = build_celery(stack.settings)
    task = app.send_task(START_TASK, kwargs={"agent": "branch", "prompt": "2,2"}, queue="chaos")
    wait_until(stack.mark(place).exists, f"a crash at {place}", explain=stack.logs)
    assert task.get(timeout=40) == "4"
    assert list(stack.ledger.all_roots(0)) == [root_session_id(task.id)]
    stack.assert_settled()
    app.close()


def test_a_tree_that_was_being_removed_goes_entirely(make_stack: MakeStack) -> None:
    """The reaper dies after the first session; another one removes the rest, and no key is left of the tree."""
    stack = make_stack(tree_ttl_s="2")
    stack.start_all(but="reaper")
    reaper = stack.start("reaper", crash_at="reaper.pruned")
    stack.wait_ready()
    with stack.client() as client:
        session = client.submit("branch", "2,2")
        assert session.result(timeout_s=40) == "4"
    wait_until(stack.mark("reaper.pruned").exists, "a crash", explain=stack.logs)
    wait_until(lambda: not reaper.alive, "its end")
    stack.start("reaper")
    wait_until(lambda: not list(stack.ledger.all_roots(0)), "the end of the tree", explain=stack.logs)
    left = [
        key for key in stack.redis.scan_iter() if b":session:" in key or b":run:" in key or b":tree:" in key
    ]
    assert left == []
    assert stack.unrest() == []
