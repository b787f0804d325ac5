"""Tasks with objectives, criteria and context: how they are given, and how the agent has them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.models.test import TestModel

from orchestrator import RetryPolicy, Task, agent, model_agent
from orchestrator.agents.definition import AgentDefinition, define_agent
from orchestrator.client.task_file import read_task_file
from orchestrator.envelope.bodies import TaskDelegation
from orchestrator.errors import InputError, SessionFailed
from orchestrator.testing import InProcessStack
from orchestrator.worker.context.context import Context
from tests.integration.structured.conftest import Published

TASK = Task(
    description="Make the parser quick.",
    title="Quick parser",
    task_type="refactoring",
    objectives=["halve its time", {"text": "keep its API", "priority": 2}],
    acceptance_criteria=[{"text": "all tests pass", "measurable": True}],
    estimated_effort_hours="1.5",
    context={
        "file_references": [{"path": "src/parser.py", "text": "the parser"}],
        "constraints": [{"type": "performance", "text": "below 200 ms"}],
    },
    expected_outputs=[{"type": "code-files", "file_paths": ["src/parser.py"]}],
    success_criteria=[{"name": "test-coverage", "text": ">=80%"}],
)


@agent("planner", role="coordinator")
def planner(ctx: Context) -> str:
    """Hands its own task on, as it was given."""
    if ctx.cause == "start":
        ctx.delegate(
            "coder",
            task=ctx.task,
            retry_policy={"max_attempts": 2, "backoff_strategy": "linear", "timeout_seconds": 9},
        )
        return ""
    return ctx.callbacks[0].result


@agent("coder")
def coder(ctx: Context) -> str:
    """Says what it was given."""
    return json.dumps({"task": ctx.task.model_dump(mode="json"), "prompt": ctx.prompt})


@agent("chief", role="coordinator")
def chief(ctx: Context) -> str:
    """Waits for a child that takes too long, and says how that ended."""
    if ctx.cause == "start":
        ctx.delegate(*json.loads(ctx.prompt)["to"], **json.loads(ctx.prompt)["how"])
        return ""
    return f"{ctx.callbacks[0].status}: {ctx.callbacks[0].error}"


@agent("sleeper")
def sleeper(ctx: Context) -> str:
    """Works until it is stopped."""
    while True:
        ctx.check()
        time.sleep(0.01)


def dawdle(ctx: Context) -> str:
    """Heeds no limit, and answers in the time that is left to it to stop."""
    time.sleep(1)
    return "done after all"


async def dawdle_async(ctx: Context) -> str:
    """The same in an event loop."""
    await asyncio.sleep(1)
    return "done after all"


def rest(ctx: Context) -> str:
    """Parks its run after the time that it had."""
    time.sleep(1)
    ctx.sleep(0.5)
    return "done after all"


class Dawdler(TestModel):
    """A model whose answer takes its time."""

    async def request(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.to_thread(time.sleep, 1)  # and is not to be interrupted
        return await super().request(*args, **kwargs)

    @asynccontextmanager
    async def request_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        await asyncio.to_thread(time.sleep, 1)
        async with super().request_stream(*args, **kwargs) as stream:
            yield stream


def _program(name: str, time_limit_s: float | None) -> AgentDefinition:
    """A program that holds on to its answer when it is asked to stop."""
    command = ("sh", "-c", "trap '' TERM; sleep 1; echo done after all")
    options = {"command": command, "stop_grace_s": 20.0, "protocol": False}
    return define_agent(name, source="here", executor="command", options=options, time_limit_s=time_limit_s)


_DAWDLERS = {"dawdler": dawdle, "async": dawdle_async, "rester": rest}
#: Agents whose answers take a second, by executor: with a limit of their own, and without any.
LATE_AGENTS = [
    definition
    for suffix, limit_s in (("", 0.2), ("-unlimited", None))
    for definition in (
        *(
            define_agent(f"{name}{suffix}", function=function, source="here", time_limit_s=limit_s)
            for name, function in _DAWDLERS.items()
        ),
        model_agent(f"model{suffix}", model=Dawdler(), time_limit_s=limit_s),
        _program(f"program{suffix}", limit_s),
    )
]


@pytest.fixture(scope="module")
def stack() -> Iterator[InProcessStack]:
    with InProcessStack([planner, coder, chief, sleeper, *LATE_AGENTS], heartbeat_s=0.1) as running:
        yield running


def _in(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_task_reaches_the_agent_two_levels_below_with_all_that_was_said(
    stack: InProcessStack, published: Published
) -> None:
    answer = stack.run("planner", "", task=TASK)
    said = json.loads(answer.text)
    (child,) = answer.tree.children(answer.session)
    given = Task.model_validate(said["task"])
    assert given == TASK.model_copy(update={"task_id": child.id})
    assert said["prompt"].startswith("Make the parser quick.\n\nObjectives:\n- halve its time")
    assert "Success criteria:\n- test-coverage: >=80%" in said["prompt"]
    assert child.title == "Quick parser"
    bodies = [m for m in published(stack, answer.session) if isinstance(m.body, TaskDelegation)]
    assert [m.body.task.objectives for m in bodies] == [TASK.objectives] * 2  # type: ignore[union-attr]
    assert bodies[1].header.retry_policy == RetryPolicy(
        max_attempts=2, backoff_strategy="linear", timeout_seconds=9
    )


def test_a_plain_task_is_a_task_too(stack: InProcessStack) -> None:
    said = json.loads(stack.run("coder", "just this", title="this").text)
    assert said["prompt"] == "just this"
    assert (said["task"]["description"], said["task"]["title"]) == ("just this", "this")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"objektives": ["x"]}, r"task\.objektives: Extra inputs are not permitted; the fields are task_id"),
        ({"task_type": "sleep"}, "task.task_type"),
        ({"objectives": ["x" * 300_000]}, "more than 262144 bytes"),
    ],
)
def test_what_is_no_task_is_refused_before_anything_is_submitted(
    stack: InProcessStack, changes: dict[str, object], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        stack.client.submit("coder", "x", task=changes)
    with pytest.raises(InputError, match="another description is given beside it"):
        stack.client.submit("coder", "another", task=TASK)


def test_a_child_that_takes_longer_than_it_may_has_failed(stack: InProcessStack) -> None:
    how = json.dumps({"to": ["sleeper", "sleep"], "how": {"time_limit_s": 0.3}})
    assert stack.run("chief", how).text == "failed: it was not done within its time limit"
    with pytest.raises(SessionFailed, match="not done within its time limit"):
        stack.client.submit("sleeper", "sleep", time_limit_s=0.3).result(timeout_s=30)


@pytest.mark.parametrize("executor", ["dawdler", "async", "rester", "model", "program"])
def test_an_answer_that_comes_after_the_time_limit_is_a_timeout(stack: InProcessStack, executor: str) -> None:
    """The agent's own, a root's, and a delegation's, by whatever the agent is executed."""
    late = f"{executor}-unlimited"
    how = json.dumps({"to": [late, "x"], "how": {"time_limit_s": 0.2}})
    own = stack.client.submit(executor, "x")
    root, parent = stack.client.submit(late, "x", time_limit_s=0.2), stack.client.submit("chief", how)
    with pytest.raises(SessionFailed, match=r"ran longer than its time limit of 0\.2 s"):
        own.result(timeout_s=60)
    with pytest.raises(SessionFailed, match="not done within its time limit"):
        root.result(timeout_s=60)
    assert parent.result(timeout_s=60) == "failed: it was not done within its time limit"


def test_a_task_that_ends_in_time_is_left_alone(stack: InProcessStack) -> None:
    handle = stack.client.submit("coder", "quick", time_limit_s=60)
    handle.result(timeout_s=30)
    left = stack.client._parts.ledger.redis.zrange("ao:{00}:timers", 0, -1)
    assert f"limit|{handle.id}".encode() not in left


def test_a_task_that_expires_while_it_waits_fails(stack: InProcessStack) -> None:
    blocker = stack.client.submit("sleeper", "sleep")
    how = json.dumps({"to": ["coder", "late"], "how": {"expires_s": 0.4, "after": [blocker.id]}})
    assert stack.run("chief", how).text.startswith("failed: ")
    stack.client.stop(blocker.id, "enough")


XML = """<task xmlns="http://agent-orchestra.local/protocol/1.0">
  <title>Quick parser</title><description>Make the parser quick.</description>
  <objectives><objective priority="1">halve its time</objective></objectives>
  <success-criteria><metric name="test-coverage">&gt;=80%</metric></success-criteria></task>"""
JSON = {
    "title": "Quick parser",
    "description": "Make the parser quick.",
    "objectives": [{"text": "halve its time", "priority": 1}],
    "success_criteria": [{"name": "test-coverage", "text": ">=80%"}],
}
TOML = """title = "Quick parser"
description = "Make the parser quick."
objectives = [{text = "halve its time", priority = 1}]
success_criteria = [{name = "test-coverage", text = ">=80%"}]
"""
COMPRESSED = f"""<body type="task-delegation"><compressed-payload algorithm="zstd" encoding="base64"
  sha256="{"0" * 64}" size="4096">KLUv/SAAAQAA</compressed-payload></body>"""


def test_a_file_may_be_xml_json_or_toml(tmp_path: Path) -> None:
    bare = XML.replace(' xmlns="http://agent-orchestra.local/protocol/1.0"', "")
    head = "<agent-message><header><priority>low</priority></header><body type='task-delegation'>"
    message = f"{head}{bare}</body></agent-message>"
    read = [
        read_task_file(_in(tmp_path, "a.xml", XML)),
        read_task_file(_in(tmp_path, "a.json", json.dumps(JSON))),
        read_task_file(_in(tmp_path, "a.toml", TOML)),
        read_task_file(_in(tmp_path, "b.xml", message)),
        read_task_file(_in(tmp_path, "b.json", json.dumps({"task": JSON, "priority": "low"}))),
    ]
    assert len({one["task"] for one in read}) == 1
    assert [one.get("priority") for one in read] == [None, None, None, "low", "low"]


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.xml", "<task>", "no task"),
        ("a.xml", "<task><objectives/></task>", "no task"),
        ("a.xml", "<body type='query'/>", 'of type="task-delegation"'),
        ("a.xml", COMPRESSED, "compressed, encrypted or stored elsewhere"),
        ("a.json", "[", "cannot be read"),
        ("a.json", "[]", "no table of fields"),
        ("a.json", '{"description": 7}', "task.description: Input should be a valid string"),
        ("a.toml", "x", "cannot be read"),
        ("a.txt", "x", "name it .xml, .json or .toml"),
    ],
)
def test_a_file_that_is_no_task_says_why(tmp_path: Path, name: str, text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_task_file(_in(tmp_path, name, text))
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_task_file(tmp_path / "none.xml")
