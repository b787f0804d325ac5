"""Tool calls that a person approves: they park the session, and nothing that ran before is run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic_ai import Agent, ApprovalRequired, RunContext, Tool

from orchestrator import Approval, Client
from orchestrator.errors import ApprovalRefused, InputError, WrongState
from orchestrator.ids import decision_id
from orchestrator.ledger import SessionState
from orchestrator.redisdb import ledger_keys
from orchestrator.testing import ByInstructions, Call, Say, Script, WireServer
from orchestrator.worker.context.context import Context
from tests.kit import Kit
from tests.waiting import wait_until
from tests.workers import Workers

from .conftest import Model, Serve


def open_of(client: Client, session: str, many: int = 1) -> list[Approval]:
    """The open approvals of a tree, once there are so many and the session is not at work."""

    def look() -> list[Approval] | None:
        found = client.approvals(session)
        settled = len(found) == many and not any(client.session(one.session).busy for one in found)
        return found if settled else None

    found: list[Approval] = wait_until(look)
    return found


class Deploys:
    """A tool that must be called once for each approval."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def deploy(self, version: str) -> str:
        """Deploy a version."""
        self.calls.append(version)
        return f"deployed {version}"


@pytest.fixture
def deploys() -> Deploys:
    return Deploys()


@pytest.fixture
def ask(kit: Kit, model: Model, serve: Serve, deploys: Deploys) -> Callable[..., tuple[WireServer, str]]:
    """Submit to an agent whose model asks to deploy versions, and repeats what it is told; its server and session."""

    def submit(*versions: str) -> tuple[WireServer, str]:
        calls = [Call("deploy", version=version) for version in versions]
        server = serve(Script(Say(calls=calls), lambda r: Say(r.last)))
        model("ops", instructions="You deploy.", tools=[deploys.deploy], approve=["dep*"])
        return server, kit.submit("ops")

    return submit


def test_a_tool_call_waits_for_a_yes_and_is_made_once(
    workers: Workers, client: Client, ask: Callable[..., Any], deploys: Deploys
) -> None:
    server, session = ask("1")
    [asked] = open_of(client, session)
    assert (asked.tool, asked.arguments, asked.agent) == ("deploy", {"version": "1"}, "ops")
    assert client.session(session).state is SessionState.IDLE
    assert deploys.calls == []
    client.approve(asked.id, "go ahead", digest=asked.digest[:12])
    answer = workers.answer(session)
    assert client.approvals() == []
    assert "deployed 1" in answer
    assert "go ahead" in answer
    assert deploys.calls == ["1"]
    assert len(server.answered) == 2


def test_a_no_is_told_to_the_model_with_its_comment(
    workers: Workers, client: Client, ask: Callable[..., Any], deploys: Deploys
) -> None:
    _, session = ask("1")
    client.deny(open_of(client, session)[0].id, "not on a Friday")
    assert "denied by a person: not on a Friday" in workers.answer(session)
    assert deploys.calls == []


def test_several_at_once_go_on_when_all_are_answered(
    workers: Workers, client: Client, ask: Callable[..., Any], deploys: Deploys
) -> None:
    server, session = ask(*"123")
    # They are asked side by side, in any order.
    first, second, third = sorted(open_of(client, session, 3), key=lambda one: str(one.arguments["version"]))
    client.approve(first.id)
    client.deny(third.id, "no third")
    open_of(client, session)
    assert deploys.calls == []
    client.approve(second.id)
    answer = workers.answer(session)
    assert sorted(deploys.calls) == ["1", "2"]
    assert "no third" in answer
    assert len(server.answered) == 2


def test_a_call_beyond_those_that_may_be_open_is_denied_and_the_model_told_why(
    kit: Kit, workers: Workers, client: Client, ask: Callable[..., Any], deploys: Deploys
) -> None:
    kit.ledger.limits = replace(kit.ledger.limits, open_questions=2)
    server, session = ask(*"123")
    for asked in open_of(client, session, 2):
        client.approve(asked.id)
    assert "limit max_open_questions = 2 reached" in workers.answer(session)
    assert (len(deploys.calls), len(server.answered)) == (2, 2)


def test_what_comes_meanwhile_is_kept_for_afterwards(
    workers: Workers, client: Client, ask: Callable[..., Any], deploys: Deploys
) -> None:
    """A user's prompt neither decides an approval nor is it lost."""
    server, session = ask("1")
    [asked] = open_of(client, session)
    client.resume(session, "And hurry up.")
    wait_until(lambda: client.session(session).runs == 2 and not client.session(session).busy)
    assert open_of(client, session) == [asked]
    client.approve(asked.id)
    answer = workers.answer(session)
    assert "And hurry up." in answer
    assert "deployed 1" in answer
    assert len(server.answered) == 2


def test_a_child_that_ends_meanwhile_is_the_result_of_the_wait(
    kit: Kit, workers: Workers, client: Client, model: Model, serve: Serve, deploys: Deploys
) -> None:
    lead = Script(
        Say(calls=[Call("delegate", agent="worker", task="look")]),
        Say(calls=[Call("wait"), Call("deploy", version="1")]),
        lambda r: Say(r.last),
    )
    serve(ByInstructions({"You lead": lead, "You work": Script(Say("<response>all is well</response>"))}))
    model("lead", role="coordinator", instructions="You lead.", tools=[deploys.deploy], approve=["deploy"])
    model("worker", instructions="You work.")
    session = kit.submit("lead")
    wait_until(lambda: client.session(session).delivered == 1 and not client.session(session).busy)
    client.approve(open_of(client, session)[0].id)
    answer = workers.answer(session)
    assert "all is well" in answer
    assert "deployed 1" in answer


def test_an_agent_that_is_handed_over_asks_by_its_own_tools(
    kit: Kit, workers: Workers, client: Client, model: Model, serve: Serve
) -> None:
    done: list[Any] = []

    def remove(path: str) -> str:
        done.append(path)
        return "removed"

    def pay(ctx: RunContext[Any], amount: int) -> str:
        if amount > 100 and not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"reason": "more than 100"})
        done.append((amount, (ctx.tool_call_metadata or {}).get("comment")))
        return "paid"

    serve(
        Script(
            Say(calls=[Call("pay", amount=5), Call("pay", amount=500), Call("remove", path="x")]),
            lambda r: Say(f"done: {r.last}"),
        )
    )
    agent = Agent("anthropic:claude-sonnet-5-5", tools=[Tool(remove, requires_approval=True), Tool(pay)])
    model("own", agent=agent)
    session = kit.submit("own")
    asked = {one.tool: one for one in open_of(client, session, 2)}
    assert asked["pay"].reason == "more than 100"
    assert done == [(5, None)]
    client.approve(asked["pay"].id, "fine")
    client.approve(asked["remove"].id)
    assert workers.answer(session).startswith("done: ")
    assert sorted(map(str, done)) == ["(5, None)", "(500, 'fine')", "x"]


def test_a_misspelt_name_fails_instead_of_calling_unasked(
    kit: Kit, workers: Workers, model: Model, serve: Serve, deploys: Deploys
) -> None:
    serve(Script(Say(calls=[Call("deploy", version="1")]), Say("done")))
    model("ops", tools=[deploys.deploy], approve=["deplyo"], attempts=1)
    session = kit.submit("ops")
    found = workers.finish(session)
    assert found.state is SessionState.FAILED
    assert "approve names the tool 'deplyo', which it does not have" in found.reason
    assert deploys.calls == []


def test_a_python_agent_is_parked_and_its_steps_are_not_executed_again(
    kit: Kit, workers: Workers, client: Client
) -> None:
    steps: list[str] = []

    @kit.agent("ops")
    def ops(ctx: Context) -> str:
        plan = ctx.step("plan", lambda: steps.append("plan") or "v7")
        one = ctx.post_approval("deploy", {"version": plan})
        two = ctx.post_approval("announce", {"to": "all"}, reason="loud")
        deploy, announce = ctx.decision(one), ctx.decision(two)
        if deploy.approved:
            ctx.step("deploy", steps.append, "deploy")
        return f"{deploy}; {announce}"

    session = kit.submit("ops")
    asked = wait_until(lambda: (found := client.approvals(session)) and len(found) == 2 and found)
    second, first = sorted(asked, key=lambda approval: approval.tool)  # both may be of one millisecond
    run = wait_until(lambda: client.runs(session)[0].claimable_ms and client.runs(session)[0])
    assert run.state.value == "queued"
    client.deny(second.id, "quiet")
    client.approve(first.id)

    def go_on() -> bool:
        for name in kit.ledger.sweep.undispatched(0):
            ready = kit.ledger.sweep.make_ready(name)
            if ready is not None:
                workers.give_again(ready)
        return client.session(session).state is SessionState.FINISHED

    wait_until(go_on)
    assert client.result(session) == "approved; denied: quiet"
    assert client.approvals() == []
    assert steps == ["plan", "deploy"]


def test_an_answer_counts_once(
    kit: Kit, workers: Workers, client: Client, ask: Callable[..., Any], deploys: Deploys
) -> None:
    _, session = ask("1")
    with Client(kit.settings) as colleague:
        [asked] = open_of(client, session)
        with pytest.raises(InputError, match="not deadbeef"):
            client.approve(asked.id, digest="deadbeef")
        with pytest.raises(InputError, match="orchestra approve"):
            client.reply(asked.id, "yes")
        client.deny(asked.id)
        with pytest.raises(WrongState):
            colleague.approve(asked.id)
        assert "denied" in workers.answer(session)
        with pytest.raises(WrongState):
            colleague.approve(asked.id)
    assert deploys.calls == []


def test_no_agent_approves(kit: Kit, workers: Workers, client: Client) -> None:
    """Neither by the client, nor by a reply, nor by a word of its own in the ledger."""
    tried: list[Any] = []

    @kit.agent("ops")
    def ops(ctx: Context) -> str:
        asked = ctx.post_approval("deploy", {})
        for attempt in (
            lambda: client.approve(asked),
            lambda: ctx.reply(asked, "approved"),
            lambda: kit.ledger.send(
                ctx._held.claim,
                ctx.session,
                "approved",
                effect="forged",
                item_id=decision_id(asked),
                kind="reply",
                priority="high",
                answers=asked,
                extra={"agent": "operator", "answers": asked},
            ),
        ):
            try:
                tried.append(attempt())
            except Exception as error:
                tried.append(error)
        return "asked"

    session = kit.submit("ops")
    open_of(client, session)
    assert [type(one) for one in tried] == [ApprovalRefused, InputError, WrongState], tried


@pytest.mark.parametrize("forged", ["arguments", "decided"])
def test_what_was_changed_in_the_memory_is_not_approved(
    kit: Kit, workers: Workers, client: Client, ask: Callable[..., Any], deploys: Deploys, forged: str
) -> None:
    """Nobody who writes to Redis changes the call that was approved, or writes an answer: the agent has not said it."""
    _, session = ask("1")
    [asked] = open_of(client, session)
    memory = json.loads(kit.ledger.memory(session))
    if forged == "arguments":
        changed = json.dumps(memory).replace(r"\"1\"", r"\"evil\"")
    else:
        changed = json.dumps({**memory, "decided": list(memory["pending"])})
    assert json.loads(changed) != memory
    kept = kit.ledger.large_texts.shorten(session, changed, above_bytes=0)
    kit.redis.hset(ledger_keys.bodies(session), "memory", kept.json)
    if forged == "arguments":
        client.approve(asked.id)
    else:
        client.resume(session, "go on")
    wait_until(lambda: client.session(session).state is SessionState.FAILED)
    assert "its memory cannot be authenticated" in client.session(session).reason
    assert client.approvals() == []
    assert deploys.calls == []
