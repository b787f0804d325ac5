"""Agents whose answers are plans: what is launched, who hears of it, and what is handed back."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from orchestrator.agents.definition import define_agent
from orchestrator.ledger import SessionState
from orchestrator.worker.context.context import Context
from tests.examined import broken_by_the_trail
from tests.kit import Kit
from tests.waiting import wait_until
from tests.workers import Workers

from .conftest import sent


def plan_of(*assignments: tuple[str, str, int, str | None]) -> str:
    names = ("role", "task", "sequence", "caller")
    return json.dumps([dict(zip(names, assignment, strict=True)) for assignment in assignments])


def launches(kit: Kit) -> dict[str, list[str]]:
    """What each delegated task waits for, by its description, from the envelopes."""
    tasks = [message.body.task for message in sent(kit, "task-delegation", "high")]
    return {task.description: [one.task_id for one in task.dependencies] for task in tasks}


def test_each_assignment_is_a_delegation_that_waits_for_the_sequence_before(kit: Kit) -> None:
    kit.agent("dev")(lambda ctx: ctx.prompt)
    answer = plan_of(("dev", "a", 1, "boss"), ("dev", "b", 1, None), ("dev", "c", 5, "boss"))
    kit.agent("boss", role="coordinator", answer="plan")(lambda _: answer)
    root = kit.begin("boss", ends="idle")
    a, b, c = sorted(kit.children(root), key=lambda s: s.title)
    assert launches(kit) == {"go": [], "a": [], "b": [], "c": [a.id, b.id]}
    assert (a.callback, b.callback, c.callback) == (True, False, True)
    assert kit.ledger.session(root).waiting == {"plan": {"mode": "all"}}
    assert kit.ledger.session(root).launched == 2


def test_a_coordinator_is_resumed_once_with_all_that_it_is_the_caller_of(kit: Kit, workers: Workers) -> None:
    """Its next answer, which is no plan, is the answer of its session."""
    seen: list[list[str]] = []
    kit.agent("dev")(lambda ctx: ctx.prompt.upper())

    @kit.agent("boss", role="coordinator", answer="plan")
    def boss(ctx: Context) -> str:
        if ctx.cause == "start":
            return plan_of(("dev", "a", 1, "boss"), ("dev", "b", 1, "boss"), ("dev", "c", 1, None))
        seen.append(sorted(c.text for c in ctx.callbacks))
        return "done: " + ", ".join(seen[-1])

    assert workers.answer(kit.submit("boss")) == "done: A, B"
    assert seen == [["A", "B"]]


def test_an_answer_that_begins_as_a_plan_is_one_in_a_resume_too(kit: Kit, workers: Workers) -> None:
    kit.agent("dev")(lambda ctx: ctx.prompt.upper())

    @kit.agent("boss", role="coordinator", answer="plan")
    def boss(ctx: Context) -> str:
        if len(ctx.all_results) < 2:
            return plan_of(("dev", f"part {len(ctx.all_results)}", 1, "boss"))
        return " and ".join(c.text for c in ctx.all_results)

    assert workers.answer(kit.submit("boss")) == "PART 0 and PART 1"


def test_an_empty_list_is_nothing_to_do(kit: Kit) -> None:
    kit.agent("boss", role="coordinator", answer="plan")(lambda _: "[]")
    root = kit.begin("boss", ends="finished")
    assert kit.children(root) == []


def test_a_plan_that_is_not_valid_is_handed_back_once(kit: Kit) -> None:
    prompts: list[str] = []
    kit.agent("dev")(lambda _: "")

    @kit.agent("boss", role="coordinator", answer="plan")
    def boss(ctx: Context) -> str:
        prompts.append(ctx.prompt)
        return plan_of(*([("dev", "a", 1, None)] if ctx.correction else [("ghost", "a", 1, None)] * 5000))

    root = kit.begin("boss", ends="finished")
    assert [s.agent for s in kit.children(root)] == ["dev"]
    assert prompts[0] == "go"
    assert "there is no agent 'ghost' for task 'a' (agents: boss, dev)" in prompts[1]
    assert "and 4990 more. Answer again" in prompts[1]


@pytest.mark.parametrize(
    "answer", ["I will do it myself.", '[{"role": "dev"', '[{"role": "ghost", "task": "a"}]']
)
def test_a_plan_that_is_not_valid_twice_fails_and_launches_nothing(kit: Kit, answer: str) -> None:
    calls: list[str] = []

    @kit.agent("boss", role="coordinator", answer="plan")
    def boss(ctx: Context) -> str:
        calls.append(ctx.correction)
        return answer

    root = kit.begin("boss", ends="failed")
    assert (len(calls), calls[0], kit.children(root)) == (2, "", [])
    assert "the plan is not valid" in kit.ledger.session(root).reason


def test_questions_and_ends_go_to_the_caller_that_the_plan_names(kit: Kit, workers: Workers) -> None:
    """One above the coordinator, and one of an earlier sequence; neither was launched by it as a parent."""
    heard: dict[str, list[str]] = {"chief": [], "designer": []}

    def listening(ctx: Context) -> None:
        for callback in ctx.callbacks:
            heard[ctx.agent].append(f"{callback.agent} {callback.kind}: {callback.text}")
            if callback.kind != "completion":
                ctx.reply(callback, f"{ctx.agent} says yes")

    @kit.agent("chief", role="coordinator")
    def chief(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("boss", "plan it")
        listening(ctx)
        return "chief is done"

    @kit.agent("designer")
    def designer(ctx: Context) -> str:
        listening(ctx)
        return "a design"

    kit.agent("tester")(lambda ctx: ctx.ask("may I test?"))
    kit.agent("writer")(lambda ctx: ctx.ask("may I write?"))
    answer = plan_of(("designer", "d", 1, None), ("tester", "t", 2, "designer"), ("writer", "w", 2, "chief"))
    kit.agent("boss", role="coordinator", answer="plan")(lambda _: answer)
    root = kit.submit("chief")
    workers.finish(root)
    for session in kit.ledger.tree(root):
        workers.finish(session.id)
    settled(kit, root)
    assert heard["designer"] == ["tester query: may I test?", "tester completion: designer says yes"]
    assert sorted(heard["chief"]) == [
        "boss completion: " + answer,
        "writer completion: chief says yes",
        "writer query: may I write?",
    ]
    assert broken_by_the_trail(kit) == []


def test_without_a_caller_there_is_nobody_to_ask(kit: Kit, workers: Workers) -> None:
    replies: list[str | None] = []
    kit.agent("dev")(lambda ctx: replies.append(ctx.raise_callback("may I?", "blocker")))
    kit.agent("boss", role="coordinator", answer="plan")(lambda _: plan_of(("dev", "a", 1, None)))
    root = kit.submit("boss")
    assert workers.finish(root).runs == 1
    for child in kit.children(root):
        assert workers.finish(child.id).state is SessionState.FINISHED
    assert replies == [None]


def test_a_run_that_is_tried_again_launches_its_plan_once(kit: Kit) -> None:
    kit.agent("dev")(lambda _: "")
    tries: list[int] = []

    @kit.agent("boss", role="coordinator", attempts=2)
    def boss(ctx: Context) -> str:
        ctx.carry_out(plan_of(("dev", "a", 1, "boss"), ("dev", "a", 1, "boss"), ("dev", "b", 2, None)))
        tries.append(ctx.attempt)
        if ctx.attempt == 1:
            raise RuntimeError("broken")
        return ""

    root = kit.begin("boss", ends="retry")
    before = {s.id for s in kit.children(root)}
    assert kit.again(root) == "idle"
    assert tries == [1, 2]
    assert {s.id for s in kit.children(root)} == before
    assert len(before) == 3


def settled(kit: Kit, root: str) -> None:
    """Wait until no session of a tree has anything queued."""

    def left() -> list[tuple[str, str, int]]:
        return [(s.agent, s.state, s.pending) for s in kit.ledger.tree(root) if s.busy or s.pending]

    wait_until(lambda: not left(), "rest", explain=left)


def test_a_coordinator_that_waits_first_has_given_no_plan_yet(kit: Kit, workers: Workers) -> None:
    kit.agent("dev")(lambda ctx: ctx.prompt.upper())

    @kit.agent("boss", role="coordinator", answer="plan")
    def boss(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("dev", "look around")
            return "let me see"
        if ctx.callbacks[-1].text == "LOOK AROUND":
            return plan_of(("dev", "work", 1, "boss"))
        return ctx.callbacks[-1].text

    assert workers.answer(kit.submit("boss")) == "WORK"


def test_a_program_corrects_its_plan_in_the_same_conversation(kit: Kit, tmp_path: Path) -> None:
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
    kit.serve(definition)
    kit.agent("dev")(lambda _: "")
    root = kit.begin("boss", ends="finished")
    assert [s.agent for s in kit.children(root)] == ["dev"]
