"""An agent that works in several threads at once: its effects are the same ones, whichever thread comes first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.errors import ClaimLost
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.launches import AT_ONCE
from tests.kit import Kit
from tests.workers import Workers


@pytest.fixture
def hectic() -> Iterator[None]:
    """Threads that are interrupted as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hectic")
def test_a_try_that_died_with_several_threads_at_work_leaves_no_child_twice(kit: Kit) -> None:
    """Equal and different delegations, in any order; the second try takes up all that the first one launched."""
    kit.agent("reviewer")(lambda _: "")

    @kit.agent("lead", role="coordinator", attempts=2)
    def lead(ctx: Context) -> str:
        texts = ["equal"] * 24 + [f"text {n}" for n in range(24)]
        with ThreadPoolExecutor(8) as pool:
            first = list(pool.map(lambda text: ctx.delegate("reviewer", text), texts[::2]))
            if ctx.attempt == 1:
                raise ValueError("died half-way")
            second = list(pool.map(lambda text: ctx.delegate("reviewer", text), reversed(texts[1::2])))
        assert len({*first, *second}) == len(texts)
        return "waiting"

    root = kit.begin("lead", ends="retry")
    assert kit.ledger.session(root).launched == 24
    assert kit.again(root) == "idle"
    found = kit.ledger.session(root)
    assert (found.launched, found.owed, found.dead) == (48, 48, 0)


def test_threads_of_one_agent_may_call_and_ask_at_the_same_time(kit: Kit, workers: Workers) -> None:
    """Each gets its own answer, and each callback is delivered once."""

    @kit.agent("reviewer")
    def reviewer(ctx: Context) -> str:
        return f"{ctx.prompt} done"

    @kit.agent("developer")
    def developer(ctx: Context) -> str:
        texts = [str(n) for n in range(6)]
        with ThreadPoolExecutor(12) as pool:
            called = pool.map(lambda text: ctx.call("reviewer", text).result, texts)
            asked = pool.map(ctx.raise_callback, texts)
            assert len(set(map(id, pool.map(lambda _: ctx.spending, texts)))) == 1  # they pay from one purse
            return f"{list(called)} {list(asked)}"

    kit.lead("developer: x", reply=lambda asked: f"{asked.text} yes")
    root = kit.submit("lead")
    called = [f"{n} done" for n in range(6)]
    asked = [f"{n} yes" for n in range(6)]
    assert workers.answer(root) == f"{called} {asked}"
    (child,) = kit.children(root)
    assert (child.launched, child.delivered, child.questions) == (6, 6, ())


def test_a_thread_that_outlives_its_run_can_do_nothing_more(kit: Kit) -> None:
    left: list[Context] = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        left.append(ctx)
        return "done"

    kit.agent("reviewer")(lambda _: "")
    root = kit.begin("lead", ends="finished")
    with ThreadPoolExecutor(1) as pool, pytest.raises(ClaimLost):
        pool.submit(left[0].delegate, "reviewer", "too late").result()
    assert kit.ledger.session(root).launched == 0


# --- Many delegations in few round trips: as sure as one by one.


TASKS = [f"task {number // 2}" for number in range(AT_ONCE + 10)]


def test_many_delegations_make_the_children_that_one_by_one_would(kit: Kit) -> None:
    """The same ids, titles and prompts in the same order; equal ones are counted."""

    @kit.agent("lead", role="coordinator", attempts=2)
    def lead(ctx: Context) -> str:
        if ctx.attempt == 1:
            made.append(ctx.delegate_all("helper", TASKS, group="g"))
            raise RuntimeError("once more, one by one")
        made.append([ctx.delegate("helper", task, group="g") for task in TASKS])
        return "asked"

    made: list[list[str]] = []
    session = kit.begin("lead", ends="retry")
    assert kit.again(session) == "idle"
    assert made[0] == made[1]
    children = {child.id: child for child in kit.children(session)}
    assert [children[name].title for name in made[0]] == TASKS
    assert [kit.ledger.texts(name, ["prompt"])["prompt"] for name in made[0]] == TASKS
    assert kit.ledger.session(session).launched == len(TASKS)
    assert {item.extra["group"] for item in kit.ledger.items(session)} == {"g"}


def test_nothing_to_do_is_refused_before_anything_of_its_round_trip_is_launched(kit: Kit) -> None:
    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        ctx.delegate_all("helper", ["one", " "])
        return "never"

    session = kit.begin("lead", ends="failed")
    assert kit.children(session) == []
