"""Many delegations in few round trips: as sure as one by one."""

from __future__ import annotations

from orchestrator.worker.context.context import Context
from orchestrator.worker.context.launches import AT_ONCE
from tests.integration.workers.conftest import StackHarness

TASKS = [f"task {number // 2}" for number in range(AT_ONCE + 10)]


def test_many_delegations_make_the_children_that_one_by_one_would(stage: StackHarness) -> None:
    """The same ids, titles and prompts in the same order; equal ones are counted."""

    @stage.agent("lead", role="coordinator", attempts=2)
    def lead(ctx: Context) -> str:
        if ctx.attempt == 1:
            made.append(ctx.delegate_all("helper", TASKS, group="g"))
            raise RuntimeError("once more, one by one")
        made.append([ctx.delegate("helper", task, group="g") for task in TASKS])
        return "asked"

    made: list[list[str]] = []
    dispatch = stage.start(stage.submit("lead"))
    assert stage.execute(dispatch) == "retry"
    assert stage.again(dispatch) == "idle"
    assert made[0] == made[1]
    children = {child.id: child for child in stage.children(dispatch.session)}
    assert [children[name].title for name in made[0]] == TASKS
    assert [stage.ledger.texts(name, ["prompt"])["prompt"] for name in made[0]] == TASKS
    assert stage.ledger.session(dispatch.session).launched == len(TASKS)
    assert {item.extra["group"] for item in stage.ledger.items(dispatch.session)} == {"g"}


def test_nothing_to_do_is_refused_before_anything_of_its_round_trip_is_launched(stage: StackHarness) -> None:
    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        ctx.delegate_all("helper", ["one", " "])
        return "never"

    session = stage.begin("lead", ends="failed")
    assert stage.children(session) == []
