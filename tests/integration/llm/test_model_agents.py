"""Model agents: a tree over the wire, tools that wait, memory, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent

from orchestrator.testing import (
    ByInstructions,
    Call,
    Cut,
    Empty,
    Fail,
    Malformed,
    Reply,
    Request,
    Say,
    Script,
    Truncated,
)
from orchestrator.worker.context.context import Context
from tests.kit import Kit
from tests.waiting import wait_until
from tests.workers import Workers

from .conftest import Cast, Model, Serve


@pytest.mark.parametrize("provider", ["anthropic:claude-sonnet-5-5", "openai-chat:gpt-5"])
def test_a_model_answers(kit: Kit, workers: Workers, model: Model, serve: Serve, provider: str) -> None:
    server = serve(Script(Say("Paris.")))
    model("geographer", model=provider, instructions="You know capitals.")
    assert workers.answer(kit.submit("geographer", "The capital of France?")) == "Paris."
    [request] = server.requests
    assert request.instructions.startswith("You know capitals.")
    assert "The capital of France?" in request.last


def test_a_lead_delegates_to_two_and_waits(kit: Kit, workers: Workers, cast: Cast) -> None:
    lead = Script(
        Say(
            calls=[
                Call("delegate", agent="left", task="do the left", wait=True),
                Call("delegate", agent="right", task="do the right", wait=True),
            ]
        ),
        lambda request: Say(f"Both: {'left done' in request.last} {'right done' in request.last}"),
    )
    server = cast(
        lead=lead,
        left=Script(Say("<response>left done</response>")),
        right=Script(Say("<response>right done</response>")),
    )
    assert workers.answer(kit.submit("lead")) == "Both: True True"
    assert len(server.answered) == 4


def test_delegate_returns_at_once_and_wait_brings_the_results(kit: Kit, workers: Workers, cast: Cast) -> None:
    lead = Script(
        Say(calls=[Call("list_agents")]),
        lambda request: Say(
            calls=[Call("delegate", agent="worker", task="one")] if "worker" in request.last else ()
        ),
        Say(calls=[Call("delegate", agent="worker", task="two")]),
        Say(calls=[Call("wait")]),
        lambda request: Say("all" if request.last.count("<agent-callback session=") == 2 else request.last),
    )
    cast(lead=lead, worker=Script(Say("<response>done</response>")))
    assert workers.answer(kit.submit("lead")) == "all"


def test_a_child_asks_and_its_parent_replies(kit: Kit, workers: Workers, cast: Cast) -> None:
    """The question reaches a parent that waits for that very child; the reply is the result of the call that asked."""

    def answer(request: Request) -> Say:
        question = re.search(r'id="(ask_[0-9a-z]+)"', request.last)
        assert question is not None, request.last
        return Say(calls=[Call("reply", question=question[1], text="blue")])

    lead = Script(
        Say(calls=[Call("delegate", agent="painter", task="paint it", wait=True)]),
        answer,
        Say(calls=[Call("wait")]),
        lambda request: Say(f"got {request.last}"),
    )
    painter = Script(
        Say(calls=[Call("ask_parent", message="Which colour?")]),
        lambda request: Say(f"<response>{request.last}</response>"),
    )
    server = cast(lead=lead, painter=painter)
    text = workers.answer(kit.submit("lead"))
    assert text.startswith("got <agent-callback")
    assert "blue" in text
    assert len(server.answered) == 6


def test_a_finished_child_is_asked_again_and_remembers(kit: Kit, workers: Workers, cast: Cast) -> None:
    def ask(request: Request) -> Say:
        session = re.search(r'session="(ses_[0-9a-z]+)"', request.last)
        assert session is not None, request.last
        return Say(calls=[Call("ask_child", to=session[1], message="And why?")])

    lead = Script(
        Say(calls=[Call("delegate", agent="expert", task="decide", wait=True)]),
        ask,
        lambda request: Say(f"because: {request.last}"),
    )

    def why(request: Request) -> Say:
        assert "And why?" in request.last
        cheaper = "decide" in request.messages[0].text
        return Say(f"<response>{'It is cheaper' if cheaper else 'I forgot'}</response>")

    cast(lead=lead, expert=Script(Say("<response>the red one</response>"), why))
    root = kit.submit("lead")
    assert "It is cheaper" in workers.answer(root)
    [child] = kit.children(root)
    assert (child.runs, child.state.value) == (2, "finished")


def test_a_user_goes_on_with_a_session_that_remembers(
    kit: Kit, workers: Workers, model: Model, serve: Serve
) -> None:
    serve(Script(Say("noted"), lambda request: Say("7" if "7" in request.messages[0].text else "?")))
    model("clerk", instructions="You remember.")
    session = kit.submit("clerk", "The number is 7.")
    assert workers.answer(session) == "noted"
    kit.ledger.enqueue(session, "Which number?", item_id="itm_again")
    wait_until(lambda: kit.answer(session) == "7", "the second answer")


def test_a_tool_with_the_context_and_one_that_fails(
    kit: Kit, workers: Workers, model: Model, serve: Serve
) -> None:
    def where(ctx: Context, suffix: str) -> str:
        """Say which session this is."""
        return ctx.session + suffix

    def broken(path: str) -> str:
        raise FileNotFoundError(f"no {path}")

    def odd() -> object:
        return object()

    server = serve(
        Script(
            Say(calls=[Call("where", suffix="!"), Call("broken", path="x.txt"), Call("odd")]),
            lambda request: Say(request.last),
        )
    )
    model("handy", instructions="You use tools.", tools=[where, broken, odd])
    session = kit.submit("handy")
    said = workers.answer(session)
    assert f"{session}!" in said
    assert "The tool broken failed: FileNotFoundError: no x.txt" in said
    assert "The tool odd failed: it returned a value of type object, which has no form as JSON" in said
    assert {"where", "broken", "odd", "ask_parent"} <= set(server.requests[0].tools)


def test_a_tool_that_exits_or_holds_up_the_loop_ends_no_other_run(
    kit: Kit, workers: Workers, model: Model, serve: Serve
) -> None:
    """All model agents of a process share one loop: without it each of them would wait until its time is over."""

    def exits() -> str:
        sys.exit(2)

    async def calls(ctx: Context) -> str:
        return ctx.call("bare", "x").result or ""

    async def sleeps(ctx: Context) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(ctx.sleep, 0))
        return "slept"

    def counts() -> Any:
        yield from (1, 2)

    serve(
        Script(
            Say(calls=[Call("exits"), Call("calls"), Call("sleeps"), Call("counts")]),
            lambda request: Say(request.last),
        )
    )
    model("handy", instructions="You use tools.", tools=[exits, calls, sleeps, counts], time_limit_s=20)
    said = workers.answer(kit.submit("handy"))
    assert "The tool exits failed: SystemExit: 2" in said
    assert "asyncio.to_thread" in said
    assert said.endswith("slept\n1\n2")


def test_an_answer_that_does_not_fit_is_handed_back(
    kit: Kit, workers: Workers, model: Model, serve: Serve
) -> None:
    class Verdict(BaseModel):
        score: int

    server = serve(
        Script(Say(calls=[Call("final_result", score="many")]), Say(calls=[Call("final_result", score=3)]))
    )
    model("judge", instructions="You judge.", output=Verdict)
    assert workers.answer(kit.submit("judge")) == '{"score":3}'
    assert "score" in server.requests[1].last


def test_an_answer_that_does_not_fit_its_json_schema_is_handed_back(
    kit: Kit, workers: Workers, model: Model, serve: Serve
) -> None:
    schema = {
        "type": "object",
        "properties": {"score": {"type": "integer", "minimum": 0}},
        "required": ["score"],
    }
    serve(Script(Say(calls=[Call("final_result", score=-1)]), Say(calls=[Call("final_result", score=3)])))
    model("judge", instructions="You judge.", output=schema)
    assert json.loads(workers.answer(kit.submit("judge"))) == {"score": 3}


def test_an_agent_object_is_used_as_it_is(kit: Kit, workers: Workers, model: Model, serve: Serve) -> None:
    serve(Script(Say(calls=[Call("roll")]), lambda request: Say(f"rolled {request.last}")))
    given: Agent[None, str] = Agent(
        "anthropic:claude-haiku-5-5", instructions="You roll dice.", defer_model_check=True
    )

    @given.tool_plain
    def roll() -> int:
        return 4

    model("dice", agent=given)
    assert workers.answer(kit.submit("dice")) == "rolled 4"


def test_a_tool_of_an_agent_object_that_exits_fails_its_own_run_alone(
    kit: Kit, model: Model, serve: Serve
) -> None:
    serve(Script(Say(calls=[Call("exits")]), Say(calls=[Call("exits")]), Say("here")))
    given: Agent[None, str] = Agent("anthropic:claude-haiku-5-5", defer_model_check=True)

    @given.tool_plain
    def exits() -> str:
        sys.exit(2)

    model("parser", agent=given, attempts=2)
    model("other", instructions="You answer.")
    session = kit.begin("parser", ends="retry")
    assert kit.again(session) == "failed"
    assert kit.ledger.session(session).reason == "SystemExit: 2"
    assert kit.execute(kit.start(kit.submit("other"))) == "finished"


@pytest.mark.parametrize("failure", [Fail(500), Cut()], ids=repr)
def test_a_provider_that_is_away_costs_a_retry(kit: Kit, model: Model, serve: Serve, failure: Reply) -> None:
    server = serve(Script(failure, Say("here")))
    model("patient", instructions="You wait.")
    session = kit.begin("patient", ends="retry")
    assert kit.again(session) == "finished"
    assert kit.answer(session) == "here"
    assert (len(server.requests), len(server.answered)) == (2, 1)


@pytest.mark.parametrize(
    ("replies", "settings", "expected"),
    [
        (
            [Fail(401, "invalid x-api-key: sk-ant-verysecretvalue")],
            {},
            "refused the key; check the provider's API key",
        ),
        ([Fail(404, "model not found")], {}, "does not have this model"),
        ([Fail(400, "bad request")], {}, "the provider refused the request"),
        ([Truncated("only half")], {"output": list[int]}, "token limit"),
        (
            [Say(calls=[Call("list_agents")])] * 9,
            {"limits": {"requests": 3}, "role": "coordinator"},
            "used up a limit",
        ),
        (
            [],
            {"model": "nobody:nothing"},
            "its model 'nobody:nothing' cannot be asked: there is no provider 'nobody'",
        ),
    ],
    ids=["key", "model", "request", "length", "loop", "unknown"],
)
def test_what_cannot_succeed_fails_in_one_sentence(
    kit: Kit,
    workers: Workers,
    model: Model,
    serve: Serve,
    replies: list[Reply],
    settings: dict[str, Any],
    expected: str,
) -> None:
    server = serve(Script(*replies))
    model("unlucky", instructions="You try.", **settings)
    session = workers.finish(kit.submit("unlucky"))
    assert session.state.value == "failed"
    assert expected in session.reason
    assert "\n" not in session.reason
    assert "verysecret" not in session.reason
    assert len(server.requests) <= 3


def test_without_a_key_the_run_fails_and_says_what_is_missing(
    kit: Kit, workers: Workers, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    model("keyless", instructions="You try.")
    assert "ANTHROPIC_API_KEY" in workers.finish(kit.submit("keyless")).reason


@pytest.mark.parametrize("odd", [Malformed("where"), Empty(), Say(calls=[Call("no_such_tool")])], ids=repr)
def test_an_odd_answer_is_handed_back(
    kit: Kit, workers: Workers, model: Model, serve: Serve, odd: Reply
) -> None:
    def where(place: str) -> str:
        return place

    serve(Script(odd, Say("recovered"), Say("recovered")))
    model("odd", model="openai-chat:gpt-5", instructions="You try.", tools=[where])
    assert workers.answer(kit.submit("odd")) == "recovered"


def test_delegating_to_nobody_is_told_to_the_model(
    kit: Kit, workers: Workers, model: Model, serve: Serve
) -> None:
    serve(Script(Say(calls=[Call("delegate", agent="wroker", task="x")]), lambda request: Say(request.last)))
    model("lead", role="coordinator", instructions="You lead.")
    model("worker", instructions="You work.")
    assert "did you mean 'worker'?" in workers.answer(kit.submit("lead"))


def test_callbacks_come_in_the_role_that_the_setting_names(
    kit: Kit, workers: Workers, model: Model, serve: Serve
) -> None:
    lead = Script(
        Say(calls=[Call("delegate", agent="worker", task="one")]),
        Say("It is delegated."),
        lambda request: Say(f"system: {'<agent-callback' in request.instructions}"),
    )
    serve(ByInstructions({"You lead": lead, "You work": Script(Say("<response>done</response>"))}))
    model("lead", role="coordinator", instructions="You lead.", callback_role="system")
    model("worker", instructions="You work.")
    assert workers.answer(kit.submit("lead")) == "system: True"


def test_a_hundred_large_results_fit_into_a_small_context(
    kit: Kit, workers: Workers, model: Model, serve: Serve
) -> None:
    """100 children of 50 KB each, a context of 32,000 tokens: beginnings and references, and reading on."""

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        return f"{ctx.prompt}: " + "x" * 50_000

    server = serve(_lead_of_a_hundred)
    model("lead", role="coordinator", instructions="You lead.", limits={"memory_tokens": 32_000})
    assert workers.answer(kit.submit("lead")).startswith("read on: xxx")
    assert max(request.size for request in server.requests) < 32_000 * 4


def _lead_of_a_hundred(request: Request) -> Say:
    if request.last == "go":
        return Say(calls=[Call("delegate", agent="worker", task=f"part {i}") for i in range(100)])
    if "works on it" in request.last:
        return Say(calls=[Call("wait")])
    found = re.findall(r'read_result\("(ses_[0-9a-z]+)", offset\)', request.last)
    if found:
        return Say(calls=[Call("read_result", session=found[-1], offset=49_990, length=100)])
    return Say(f"read on: {request.last}")


def test_a_model_is_told_of_attachments_and_reads_them(
    kit: Kit, workers: Workers, model: Model, serve: Serve
) -> None:
    """A name that there is not is refused with those that there are."""

    @kit.agent("coder")
    def coder(ctx: Context) -> str:
        ctx.attach("diff", "+Hello")
        return "greeted"

    def read(name: str) -> Callable[[Request], Say]:
        def say(request: Request) -> Say:
            (session,) = re.findall(
                r'\[attached: diff; read_result\("(ses_[0-9a-z]+)", attachment=name\) reads one\]',
                str(request),
            )
            return Say(calls=[Call("read_result", session=session, attachment=name)])

        return say

    serve(
        Script(
            Say(calls=[Call("delegate", agent="coder", task="greet", wait=True)]),
            read("other"),
            lambda request: read("diff")(request) if "there are: diff" in request.last else Say(request.last),
            lambda request: Say(request.last),
        )
    )
    model("lead", role="coordinator")
    assert workers.answer(kit.submit("lead")) == "+Hello"


def test_replies_that_come_one_by_one_cost_one_request(kit: Kit, workers: Workers, cast: Cast) -> None:
    """Three questions in one answer: the model is asked again when all three replies are there."""

    def ask(request: Request) -> Say:
        sessions = list(dict.fromkeys(re.findall(r'session="(ses_[0-9a-z]+)"', request.last)))
        return Say(calls=[Call("ask_child", to=name, message=f"Why {n}?") for n, name in enumerate(sessions)])

    lead = Script(
        Say(calls=[Call("delegate", agent="expert", task=f"task {n}", wait=True) for n in range(3)]),
        ask,
        lambda request: Say("; ".join(sorted(set(re.findall(r"because of task \d", request.last))))),
    )
    expert = Script(
        Say("<response>known</response>"),
        lambda request: Say(f"<response>because of {request.messages[0].text[:6]}</response>"),
    )
    server = cast(lead=lead, expert=expert)
    root = kit.submit("lead")
    assert workers.answer(root) == "because of task 0; because of task 1; because of task 2"
    assert len(server.answered) == 3 + 6


def test_a_plan_that_is_not_valid_is_corrected_in_the_same_conversation(
    kit: Kit, model: Model, serve: Serve
) -> None:
    """The model sees its own answer and what was wrong with it; then its plan is carried out."""
    server = serve(Script(Say("I shall do it myself."), Say('[{"role": "dev", "task": "work"}]')))
    model("boss", role="coordinator", answer="plan")
    model("dev")
    root = kit.begin("boss", "build it", ends="finished")
    assert [s.agent for s in kit.children(root)] == ["dev"]
    first, second = server.requests
    assert "ONLY a JSON array" in first.instructions
    assert "was not accepted: it is not JSON" in second.last
    assert "build it" in str(second)
    assert "I shall do it myself." in str(second)
