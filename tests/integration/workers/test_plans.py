"""Agents whose answers are plans: what is launched, who hears of it, and what is handed back."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from orchestrator.agents.definition import define_agent
from orchestrator.envelope.bodies import TaskDelegation
from orchestrator.envelope.codec import decode
from orchestrator.ledger import SessionState
from orchestrator.redisdb import keys
from orchestrator.worker.context.context import Context

from .conftest import StackHarness
from .test_talking import stage
from .test_waiting import breaks
from .theatre import Harness

__all__ = ["stage"]


def plan_of(*assignments: tuple[str, str, int, str | None]) -> str:
    names = ("role", "task", "sequence", "caller")
    return json.dumps([dict(zip(names, assignment, strict=True)) for assignment in assignments])


def launches(stage: StackHarness) -> dict[str, list[str]]:
    """What each delegated task waits for, by its description, from the envelopes."""
    found = {}
    for _, fields in stage.redis.xrange(keys.messages(0, "task-delegation", "high")):
        body = decode(fields[b"envelope"]).body
        assert isinstance(body, TaskDelegation)
        found[body.task.description] = [d.task_id for d in body.task.dependencies]
    return found


def test_each_assignment_is_a_delegation_that_waits_for_the_sequence_before(stage: StackHarness) -> None:
    stage.agent("dev")(lambda ctx: ctx.prompt)
    answer = plan_of(("dev", "a", 1, "boss"), ("dev", "b", 1, None), ("dev", "c", 5, "boss"))
    stage.agent("boss", role="coordinator", answer="plan")(lambda _: answer)
    root = stage.begin("boss", ends="idle")
    a, b, c = sorted(stage.children(root), key=lambda s: s.title)
    assert launches(stage) == {"go": [], "a": [], "b": [], "c": [a.id, b.id]}
    assert (a.callback, b.callback, c.callback) == (True, False, True)
    assert stage.ledger.session(root).waiting == {"plan": {"mode": "all"}}
    assert stage.ledger.session(root).launched == 2


def test_a_coordinator_is_resumed_once_with_all_that_it_is_the_caller_of(
    stage: StackHarness, theatre: Harness
) -> None:
    """Its next answer, which is no plan, is the answer of its session."""
    seen: list[list[str]] = []
    stage.agent("dev")(lambda ctx: ctx.prompt.upper())

    @stage.agent("boss", role="coordinator", answer="plan")
    def boss(ctx: Context) -> str:
        if ctx.cause == "start":
            return plan_of(("dev", "a", 1, "boss"), ("dev", "b", 1, "boss"), ("dev", "c", 1, None))
        seen.append(sorted(c.text for c in ctx.callbacks))
        return "done: " + ", ".join(seen[-1])

    assert theatre.answer(stage.submit("boss")) == "done: A, B"
    assert seen == [["A", "B"]]


def test_an_answer_that_begins_as_a_plan_is_one_in_a_resume_too(
    stage: StackHarness, theatre: Harness
) -> None:
    stage.agent("dev")(lambda ctx: ctx.prompt.upper())

    @stage.agent("boss", role="coordinator", answer="plan")
    def boss(ctx: Context) -> str:
        if len(ctx.all_results) < 2:
            return plan_of(("dev", f"part {len(ctx.all_results)}", 1, "boss"))
        return " and ".join(c.text for c in ctx.all_results)

    assert theatre.answer(stage.submit("boss")) == "PART 0 and PART 1"


def test_an_empty_list_is_nothing_to_do(stage: StackHarness) -> None:
    stage.agent("boss", role="coordinator", answer="plan")(lambda _: "[]")
    root = stage.begin("boss", ends="finished")
    assert stage.children(root) == []


def test_a_plan_that_is_not_valid_is_handed_back_once(stage: StackHarness) -> None:
    prompts: list[str] = []
    stage.agent("dev")(lambda _: "")

    @stage.agent("boss", role="coordinator", answer="plan")
    def boss(ctx: Context) -> str:
        prompts.append(ctx.prompt)
        return plan_of(*([("dev", "a", 1, None)] if ctx.correction else [("ghost", "a", 1, None)] * 5000))

    root = stage.begin("boss", ends="finished")
    assert [s.agent for s in stage.children(root)] == ["dev"]
    assert prompts[0] == "go"
    assert "there is no agent 'ghost' for task 'a' (agents: boss, dev)" in prompts[1]
    assert "and 4990 more. Answer again" in prompts[1]


@pytest.mark.parametrize(
    "answer", ["I will do it myself.", '[{"role": "dev"', '[{"role": "ghost", "task": "a"}]']
)
def test_a_plan_that_is_not_valid_twice_fails_and_launches_nothing(stage: StackHarness, answer: str) -> None:
    calls: list[str] = []

    @stage.agent("boss", role="coordinator", answer="plan")
    def boss(ctx: Context) -> str:
        calls.append(ctx.correction)
        return answer

    root = stage.begin("boss", ends="failed")
    assert (len(calls), calls[0], stage.children(root)) == (2, "", [])
    assert "the plan is not valid" in stage.ledger.session(root).reason


def test_questions_and_ends_go_to_the_caller_that_the_plan_names(
    stage: StackHarness, theatre: Harness
) -> None:
    """One above the coordinator, and one of an earlier sequence; neither was launched by it as a parent."""
    heard: dict[str, list[str]] = {"chief": [], "designer": []}

    def listening(ctx: Context) -> None:
        for callback in ctx.callbacks:
            heard[ctx.agent].append(f"{callback.agent} {callback.kind}: {callback.text}")
            if callback.kind != "completion":
                ctx.reply(callback, f"{ctx.agent} says yes")

    @stage.agent("chief", role="coordinator")
    def chief(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("boss", "plan it")
        listening(ctx)
        return "chief is done"

    @stage.agent("designer")
    def designer(ctx: Context) -> str:
        listening(ctx)
        return "a design"

    stage.agent("tester")(lambda ctx: ctx.ask("may I test?"))
    stage.agent("writer")(lambda ctx: ctx.ask("may I write?"))
    answer = plan_of(("designer", "d", 1, None), ("tester", "t", 2, "designer"), ("writer", "w", 2, "chief"))
    stage.agent("boss", role="coordinator", answer="plan")(lambda _: answer)
    root = stage.submit("chief")
    theatre.finish(root)
    for session in stage.ledger.tree(root):
        theatre.finish(session.id)
    theatre_settled(stage, root)
    assert heard["designer"] == ["tester query: may I test?", "tester completion: designer says yes"]
    assert sorted(heard["chief"]) == [
        "boss completion: " + answer,
        "writer completion: chief says yes",
        "writer query: may I write?",
    ]
    assert breaks(stage) == []


def test_without_a_caller_there_is_nobody_to_ask(stage: StackHarness, theatre: Harness) -> None:
    replies: list[str | None] = []
    stage.agent("dev")(lambda ctx: replies.append(ctx.raise_callback("may I?", "blocker")))
    stage.agent("boss", role="coordinator", answer="plan")(lambda _: plan_of(("dev", "a", 1, None)))
    root = stage.submit("boss")
    assert theatre.finish(root).runs == 1
    for child in stage.children(root):
        assert theatre.finish(child.id).state is SessionState.FINISHED
    assert replies == [None]


def test_a_run_that_is_tried_again_launches_its_plan_once(stage: StackHarness) -> None:
    stage.agent("dev")(lambda _: "")
    tries: list[int] = []

    @stage.agent("boss", role="coordinator", attempts=2)
    def boss(ctx: Context) -> str:
        ctx.carry_out(plan_of(("dev", "a", 1, "boss"), ("dev", "a", 1, "boss"), ("dev", "b", 2, None)))
        tries.append(ctx.attempt)
        if ctx.attempt == 1:
            raise RuntimeError("broken")
        return ""

    root = stage.submit("boss")
    dispatch = stage.start(root)
    assert stage.execute(dispatch) == "retry"
    before = {s.id for s in stage.children(root)}
    assert stage.again(dispatch) == "idle"
    assert tries == [1, 2]
    assert {s.id for s in stage.children(root)} == before
    assert len(before) == 3


def theatre_settled(stage: StackHarness, root: str) -> None:
    """Wait until no session of a tree has anything queued."""
    deadline = time.monotonic() + 60
    while any(s.busy or s.pending for s in stage.ledger.tree(root)):
        assert time.monotonic() < deadline, [(s.agent, s.state, s.pending) for s in stage.ledger.tree(root)]
        time.sleep(0.01)


def test_a_coordinator_that_waits_first_has_given_no_plan_yet(stage: StackHarness, theatre: Harness) -> None:
    stage.agent("dev")(lambda ctx: ctx.prompt.upper())

    @stage.agent("boss", role="coordinator", answer="plan")
    def boss(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("dev", "look around")
            return "let me see"
        if ctx.callbacks[-1].text == "LOOK AROUND":
            return plan_of(("dev", "work", 1, "boss"))
        return ctx.callbacks[-1].text

    assert theatre.answer(stage.submit("boss")) == "WORK"


def test_a_program_corrects_its_plan_in_the_same_conversation(stage: StackHarness, tmp_path: Path) -> None:
    """It is told what was wrong, after what it had said before."""
    script = (
        "import sys; told = sys.stdin.read(); "
        "wrong = 'was not accepted: it is not JSON' in told and 'I shall do it myself' in told; "
        """print('[{"role": "dev", "task": "work"}]' if wrong else 'I shall do it myself')"""
    )
    definition = define_agent(
        "boss",
        source="here",
        executor="command",
        role="coordinator",
        answer="plan",
        options={"command": (sys.executable, "-c", script), "folder": tmp_path},
    )
    stage.catalogue["boss"] = definition
    stage.parts.agents.announce([definition.record])
    stage.agent("dev")(lambda _: "")
    root = stage.submit("boss")
    assert stage.play(root) == "finished", stage.ledger.session(root).reason
    assert [s.agent for s in stage.children(root)] == ["dev"]
