"""The tests of a user who checks types strictly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from agents import counter, lead

from orchestrator import Session, model_agent
from orchestrator.testing import (
    Answer,
    Asks,
    Attempt,
    ByInstructions,
    Call,
    Cut,
    Done,
    Effect,
    Empty,
    ExplorationFailed,
    Explored,
    Fail,
    Failed,
    Hang,
    InProcessStack,
    Malformed,
    Message,
    Never,
    NotScripted,
    Reply,
    Request,
    Say,
    Script,
    ScriptedRun,
    ScriptedSession,
    Tree,
    Truncated,
    WireServer,
    explore,
    scripted_model,
)


def counted(request: Request) -> Reply:
    said: tuple[Message, ...] = request.messages
    return Say(f"{len(said)} messages, the last: {request.last}")


SCRIPT = ByInstructions(
    {
        "You lead": Script(Say(calls=[Call("count_words", text="one two")]), counted),
        "You fail": Script(
            Fail(429, retry_after_s=20), Hang(1), Cut(), Malformed("count_words"), Empty(), Truncated("half")
        ),
    }
)


def stacks() -> Iterator[InProcessStack]:
    writer = model_agent("writer", model=scripted_model(SCRIPT))
    with InProcessStack([lead, counter, writer], slots=2, tree_budget="usd=1") as stack:
        yield stack


def test_the_lead_counts() -> None:
    for stack in stacks():
        answer = stack.run("lead", "To be.")
        assert_type(answer, Answer)
        assert_type(answer.text, str)
        assert_type(answer.tree, Tree)
        assert_type(answer.tree.agents, dict[str, int])
        assert_type(answer.tree.children(answer.session), tuple[Session, ...])
        answer.tree.assert_settled()


def test_the_wire() -> None:
    with WireServer(SCRIPT, port=0) as server:
        assert_type(server.url, str)
        assert_type(server.environment(), dict[str, str])
        assert_type(server.requests[0].tools, tuple[str, ...])


def test_one_agent() -> None:
    with ScriptedSession(
        lead,
        "To be.",
        answers={
            "counter": [Asks("which?", then=lambda reply: reply), Failed("lost"), Never()],
            "*": Done("2"),
        },
        replies=lambda question: f"re: {question}",
        decisions=True,
    ) as session:
        run = session.run(crash_after=("delegate", 1))
        assert_type(run, ScriptedRun)
        assert_type(run.attempts, tuple[Attempt, ...])
        assert_type(run.delegated, tuple[Effect, ...])
        assert_type(run.answer, str)
        try:
            session.finish()
        except NotScripted as problem:
            assert_type(str(problem), str)


def test_any_order() -> None:
    try:
        assert_type(explore([counter], "To be.", 3, calls={"agents.send": None}), Explored)
    except ExplorationFailed as problem:
        assert_type(str(problem), str)
