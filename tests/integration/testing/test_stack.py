"""What ships for users' tests: a stack in the process, a scripted model, assertions on a tree."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator import agent, model_agent
from orchestrator.testing import ByInstructions, Call, InProcessStack, Say, Script, WireServer, scripted_model
from orchestrator.worker.context.context import Context


class Report(BaseModel):
    found: int


SCRIPT = ByInstructions(
    {
        "You lead": Script(
            Say(calls=[Call("delegate", agent="finder", task=f"part {n}", wait=True) for n in range(2)]),
            Say(calls=[Call("final_result", found=2)]),
        ),
        "You find": Script(Say(calls=[Call("look", place="here")]), Say("<response>found it</response>")),
    }
)


def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing {place}"


MODEL = scripted_model(SCRIPT)
LEAD = model_agent("lead", role="coordinator", model=MODEL, instructions="You lead.", output=Report)
FINDER = model_agent("finder", model=MODEL, instructions="You find.", tools=[look])


@agent("boss", role="coordinator")
def boss(ctx: Context) -> str:
    """A Python parent of a model agent: it has the typed answer."""
    if ctx.cause == "start":
        ctx.delegate("lead", "lead")
        return "delegated"
    [callback] = ctx.callbacks
    return f"{callback.value} {callback.value_as(Report).found}"


def test_a_tree_of_models_and_functions_runs_in_the_process() -> None:
    with InProcessStack([boss, LEAD, FINDER]) as stack:
        answer = stack.run("boss", "go")
        assert answer.text == "{'found': 2} 2"
        assert answer.tree.agents == {"boss": 1, "lead": 1, "finder": 2}
        answer.tree.assert_settled()
        lead = answer.tree.children(answer.session)[0]
        assert stack.client.result(lead.id, type=Report) == Report(found=2)


def test_an_agent_that_hangs_does_not_hold_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.testing.stack.LEAVE_S", 0.1)
    let_go = threading.Event()

    @agent("hanging")
    def hanging(_: Context) -> str:
        let_go.wait(20)
        return "late"

    began = time.monotonic()
    with pytest.raises(TimeoutError), InProcessStack([hanging], slots=1) as stack:
        stack.run("hanging", "go", timeout_s=0.2)
    took_s = time.monotonic() - began
    let_go.set()
    assert took_s < 15


def raises(_: object) -> Say:
    raise KeyError("place")


def test_a_session_that_never_ends_says_what_ended_the_stack() -> None:
    """The time limit of the test would say nothing of it."""
    with InProcessStack([boss], slots=0) as stack:
        stack.failure = ZeroDivisionError("the router")
        with pytest.raises(ZeroDivisionError, match="the router"):
            stack.run("boss", "go", timeout_s=0.1)
        stack.failure = None


def test_a_server_that_was_never_started_is_stopped_at_once() -> None:
    """A test that fails before it starts its server ends all the same."""
    server = WireServer(Script())
    stopping = threading.Thread(target=server.stop, daemon=True)
    stopping.start()
    stopping.join(10)
    assert not stopping.is_alive()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (raises, "KeyError: 'place'"),
        (lambda _: Say(calls=[Call("look", place=object())]), "TypeError: Object of type object is not JSON"),
        (lambda _: "text", "TypeError: a script answers with Say, Fail or another reply, not 'text'"),
    ],
)
def test_what_is_wrong_with_a_script_is_said(script: Any, why: str) -> None:
    with WireServer(script) as server, pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{server.url}/v1/messages", data=b'{"messages": []}')
    assert refused.value.code == 400
    assert json.load(refused.value)["error"]["message"].startswith(f"the script raised {why}")
