"""Many delegations in few round trips, and several runs in one message: as sure as one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.errors import LimitExceeded
from orchestrator.ids import new_claim_id
from orchestrator.ledger import RunState, SessionState
from orchestrator.redisdb import keys
from orchestrator.settings import load_settings
from tests.integration.workers.conftest import Stage
from workers.bundle import Ticket
from workers.context import Context
from workers.effects import AT_ONCE
from workers.runner import execute_runs

TASKS = [f"task {number // 2}" for number in range(AT_ONCE + 10)]


def _execute(stage: Stage, tickets: list[Ticket]) -> list[str]:
    left = iter(tickets)
    ends = execute_runs(stage.runtime, lambda: next(left, None), worker="w1")
    return [end.verdict for end in ends]


def _ready(stage: Stage, *agents: str) -> list[Ticket]:
    """A started child of each of these agents, all of one parent."""
    made: list[str] = []
    stage.agent("lead", role="coordinator")(
        lambda ctx: made.extend(ctx.delegate(agent, "do") for agent in agents)
    )
    stage.play(stage.submit("lead"))
    starts = [stage.start(child) for child in made]
    return [Ticket(start.agent, start.session, start.run) for start in starts]


def test_many_delegations_make_the_children_that_one_by_one_would(stage: Stage) -> None:
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


def test_a_limit_refuses_what_is_too_many_and_keeps_what_was_launched(
    redis: redis_py.Redis, redis_url: str, tmp_path: Path
) -> None:
    stage = Stage(redis, load_settings(redis_url=redis_url, data=tmp_path, max_children=3))

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        with pytest.raises(LimitExceeded, match="max_children = 3"):
            ctx.delegate_all("helper", TASKS)
        return "three"

    session = stage.submit("lead")
    assert stage.play(session) == "idle"
    assert stage.ledger.session(session).launched == 3


def test_nothing_to_do_is_refused_before_anything_of_its_round_trip_is_launched(stage: Stage) -> None:
    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        ctx.delegate_all("helper", ["one", " "])
        return "never"

    session = stage.submit("lead")
    assert stage.play(session) == "failed"
    assert stage.children(session) == []


def test_the_runs_of_a_message_are_executed_in_order(stage: Stage) -> None:
    """Each is committed, each answer is its own, and no lease is left behind."""
    seen = []

    @stage.agent("helper")
    def helper(ctx: Context) -> str:
        seen.append(ctx.session)
        return f"answer of {ctx.session}"

    tickets = _ready(stage, *["helper"] * 4)
    assert _execute(stage, tickets) == ["finished"] * 4
    assert seen == [ticket.session for ticket in tickets]
    for ticket in tickets:
        assert stage.ledger.result(ticket.session) == (SessionState.FINISHED, f"answer of {ticket.session}")
    assert stage.redis.zcard(keys.running(0)) == 0


def test_a_run_that_somebody_else_has_is_passed_over(stage: Stage) -> None:
    """Refused where it is claimed alone, and where it is claimed with the commit before it."""
    stage.agent("helper")(lambda ctx: "done")
    tickets = _ready(stage, *["helper"] * 4)
    for ticket in (tickets[0], tickets[2]):
        assert stage.ledger.claim(ticket.run, new_claim_id(), session_id=ticket.session, worker="w2")
    assert _execute(stage, tickets) == ["refused", "finished", "refused", "finished"]


def test_a_failure_in_the_middle_is_its_own(stage: Stage) -> None:
    """Agents that fail, that are not served here, and that are tried again leave the others alone."""
    attempts: Iterator[int] = iter(range(5))

    @stage.agent("broken")
    def broken(ctx: Context) -> str:
        raise ValueError("broken")

    @stage.agent("shaky", attempts=2)
    def shaky(ctx: Context) -> str:
        if next(attempts) == 0:
            raise ValueError("shaky")
        return "at last"

    stage.agent("helper")(lambda ctx: "done")
    stage.agent("elsewhere")(lambda ctx: "done")
    tickets = _ready(stage, "helper", "broken", "elsewhere", "shaky", "helper")
    del stage.catalogue["elsewhere"]
    assert _execute(stage, tickets) == ["finished", "failed", "not-served", "retry", "finished"]
    assert _execute(stage, [tickets[3]]) == ["finished"]


def test_a_lost_commit_does_not_cost_the_next_run_its_claim(stage: Stage) -> None:
    """The run was taken away while its agent worked; the one after it is executed all the same."""

    @stage.agent("robbed")
    def robbed(ctx: Context) -> str:
        stage.redis.hset(keys.run(ctx.run), "claim", "somebody else")
        return "too late"

    stage.agent("helper")(lambda ctx: "done")
    tickets = _ready(stage, "robbed", "helper")
    assert _execute(stage, tickets) == ["lost", "finished"]


def test_one_whose_books_are_damaged_keeps_none_of_the_others(stage: Stage) -> None:
    """It is not given back to be refused again at once: the sweep sends it, later and later."""
    stage.agent("solo")(lambda ctx: ctx.prompt)
    tickets = _ready(stage, "solo", "solo", "solo")
    spoilt = tickets[1]
    stage.redis.delete(keys.bodies(spoilt.session))
    stage.redis.set(keys.bodies(spoilt.session), "no hash")
    assert _execute(stage, tickets) == ["finished", "damaged", "finished"]
    assert stage.ledger.run(spoilt.run).state == RunState.QUEUED
    assert stage.redis.zscore(keys.dispatch(0), spoilt.run) is not None
