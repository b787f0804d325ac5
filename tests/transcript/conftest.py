"""A stack at work whose agents are scripted models, programs and functions, and what its commands print."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from orchestrator.client.client import Client
from orchestrator.config.settings import Settings
from tests.commands import run_command
from tests.console.conftest import HOSTILE, stack_of
from tests.waiting import wait_until

SECRET = "swordfish"
AGENTS = """
import asyncio
import os
import random
import signal
import time
from pathlib import Path

from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage

from orchestrator import agent, model_agent
from orchestrator.agents.definition import define_agent
from orchestrator.worker.context.context import Context

HOSTILE, SECRET, MARK = {hostile!r}, {secret!r}, {mark!r}


def scripted(*replies, **facts):
    def answer(messages, info):
        said = sum(isinstance(one, ModelResponse) for one in messages)
        reply = replies[min(said, len(replies) - 1)]
        parts = reply(messages) if callable(reply) else list(reply)
        return ModelResponse(parts=parts, usage=RequestUsage(input_tokens=100, output_tokens=20), **facts)

    return FunctionModel(answer, model_name="scripted")


def look(path: str) -> str:
    "Look at a file."
    if path != "right.txt":
        raise ModelRetry(f"there is no file {{path}}; take right.txt")
    return "the contents " + HOSTILE


def deploy(version: str) -> str:
    "Deploy a version."
    return f"deployed {{version}}"


def model(name, *replies, tools=(), output=str, facts=None, **settings):
    settings = {{"attempts": 1, "backoff_s": 0.01, "stream": False, **settings}}
    made = Agent(scripted(*replies, **(facts or {{}})), instructions=f"You are {{name}}.", tools=tools, output_type=output)
    return model_agent(name, agent=made, **settings)


lead = model(
    "lead",
    [ThinkingPart("I look first"), TextPart("Let me look."), ToolCallPart("look", {{"path": "wrong.txt"}}, "call_1")],
    [ToolCallPart("look", {{"path": "right.txt"}}, "call_2")],
    [ToolCallPart("delegate", {{"agent": "helper", "task": "count the words", "wait": True}}, "call_3")],
    [ToolCallPart("deploy", {{"version": "1.2"}}, "call_4")],
    [TextPart("all is done")],
    tools=[look, deploy],
    approve=["deploy"],
    role="coordinator",
    prices={{"input": 1.0, "output": 10.0}},
)


@agent("helper")
def helper(ctx):
    print("printed by the helper")
    return "seven words"


@agent("parent", role="coordinator")
def parent(ctx):
    if ctx.cause == "start":
        ctx.delegate("helper", "count", title="The count")
        ctx.wait_for("all")
        return "waiting"
    return ctx.step("sum", lambda: "summed")


@agent("hopeful", role="coordinator")
def hopeful(ctx):
    if ctx.cause == "start":
        ctx.delegate("picky", "say it")
        return "waiting"
    return ctx.step("said", lambda: "it did not say it")


@agent("careful")
def careful(ctx):
    asked = ctx.request_approval("wipe", {{"path": "/srv"}}, reason="it is full", timeout_s=float(ctx.prompt))
    return f"approved: {{asked.approved}}"


@agent("crowd", role="coordinator")
def crowd(ctx):
    if ctx.cause == "start":
        ctx.delegate_all("helper", (str(number) for number in range(120)))
        ctx.wait_for("all")
        return "waiting"
    return "all came"


class Place(BaseModel):
    name: str
    size: int


wrong = model("wrong", [TextPart("Bern is large")], output=Place)


made = Agent(scripted([TextPart("Atlantis, of course")]), output_type=[str, DeferredToolRequests])


@made.output_validator
def check(said):
    raise ModelRetry("the answer must name a city in Europe")


picky = model_agent("picky", agent=made, attempts=1, stream=False)
refusing = model(
    "refusing",
    [],
    facts={{"finish_reason": "content_filter", "provider_details": {{"refusal": "I cannot help with weapons."}}}},
)


def flaky_look(path: str) -> str:
    "Look, and fail the first time."
    if not Path(MARK).exists():
        Path(MARK).write_text("been here")
        raise RuntimeError("the disk was away")
    return "found it"


flaky = model(
    "flaky",
    [TextPart("I look."), ToolCallPart("flaky_look", {{"path": "a"}}, "call_1")],
    [TextPart("it is there")],
    tools=[flaky_look],
    attempts=2,
)


teller = model(
    "teller",
    [TextPart("I look."), ToolCallPart("look", {{"path": "right.txt"}}, "call_1")],
    [TextPart("it is there")],
    tools=[look],
)


def bulk(number: int) -> str:
    "Return a lot."
    return "".join(map(chr, random.Random(number).choices(range(0x4E00, 0x9F00), k=150_000)))


bulky = model(
    "bulky",
    *([ToolCallPart("bulk", {{"number": number}}, f"call_{{number}}")] for number in range(5)),
    [TextPart("that was all")],
    tools=[bulk],
)


def linger(path: str) -> str:
    "Take long."
    while not Path(MARK + ".go").exists():
        time.sleep(0.02)
    return "at last"


lingering = model(
    "lingering",
    [TextPart("I begin."), ToolCallPart("linger", {{"path": "a"}}, "call_1")],
    [TextPart("done")],
    tools=[linger],
)


async def slowly(messages, info):
    yield "Once upon a time "
    while not Path(MARK + ".more").exists():
        await asyncio.sleep(0.02)
    yield "there was a queue. "
    while not Path(MARK + ".end").exists():
        await asyncio.sleep(0.02)
    yield "The end."


storyteller = model_agent(
    "storyteller", agent=Agent(FunctionModel(stream_function=slowly, model_name="scripted")), attempts=1
)


def die(path: str) -> str:
    "Kill its own process."
    os.kill(os.getpid(), signal.SIGKILL)


dying = model(
    "dying",
    [TextPart("I touch it."), ToolCallPart("look", {{"path": "right.txt"}}, "call_1")],
    [TextPart("And now."), ToolCallPart("die", {{"path": "a"}}, "call_2")],
    tools=[look, die],
    attempts=2,
    backoff_s=600,
)


doomed = model(
    "doomed",
    [TextPart("I touch it."), ToolCallPart("look", {{"path": "right.txt"}}, "call_1")],
    [TextPart("And now."), ToolCallPart("die", {{"path": "a"}}, "call_2")],
    tools=[look, die],
)


def tell(what: str) -> str:
    "Tell."
    return f"the word is {{SECRET}}"


secret = model(
    "secret",
    [ThinkingPart(f"hide {{SECRET}}"), ToolCallPart("tell", {{"what": SECRET}}, "call_1")],
    [TextPart(f"it is {{SECRET}}")],
    tools=[tell],
    encrypt=True,
)


private = model(
    "private",
    [TextPart(f"it is {{SECRET}}"), ToolCallPart("die", {{"path": SECRET}}, "call_1")],
    tools=[die],
    encrypt=True,
)


PROGRAM = '''
import json, sys
prompt = sys.stdin.read()
for event in (
    {{"text": "I will look", "tool": None}},
    {{"tool": "Read(notes.md)"}},
    {{"text": "found " + str(len(prompt) > 0)}},
    {{"answer": "found True", "in": 70, "out": 30, "usd": 0.25}},
):
    print(json.dumps(event), flush=True)
if "crash" in prompt:
    print("the disk is full", file=sys.stderr)
    sys.exit(3)
'''
program = define_agent(
    "program",
    source="here",
    executor="command",
    attempts=1,
    options={{
        "command": ({python!r}, "-c", PROGRAM),
        "output": "json-lines",
        "protocol": False,
        "read": {{
            "answer": "answer", "text": "text", "tool": "tool",
            "input_tokens": "in", "output_tokens": "out", "cost_usd": "usd",
        }},
    }},
)
"""


@dataclass
class Stage:
    """The stack, and its commands."""

    settings: Settings
    client: Client
    #: Where its agents look.
    folder: Path

    def run(self, *arguments: str) -> Result:
        """Run a command against it."""
        return run_command(*arguments, settings=self.settings)

    def transcript(self, session: str, *options: str) -> str:
        """Return what `orchestra transcript` prints."""
        result = self.run("transcript", session, *options)
        assert result.exit_code == 0, result.output
        return result.output

    def ended(self, agent: str, prompt: str = "go", **options: Any) -> str:
        """Submit, and wait for the end; the session."""
        session = self.client.submit(agent, prompt, **options).id
        self.client.wait(session, timeout_s=90)
        return session


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A whole stack of its own processes."""
    folder = tmp_path_factory.mktemp("stack")
    text = AGENTS.format(hostile=HOSTILE, secret=SECRET, mark=str(folder / "mark"), python=sys.executable)
    with stack_of(folder, text) as (settings, client):
        yield Stage(settings, client, folder)


@pytest.fixture(scope="module")
def led(stage: Stage) -> str:
    """The session of a model that looked, was corrected, delegated, was resumed and deployed with approval."""
    session = stage.client.submit("lead", f"look and deploy {HOSTILE}", title="A look").id
    [asked] = wait_until(lambda: stage.client.approvals(session), "an approval", 90)
    stage.client.approve(asked.id, "go ahead", by="ann")
    stage.client.wait(session, timeout_s=90)
    return session
