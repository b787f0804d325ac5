"""MCP with the SDK's own client: a command-line agent takes part in its session, and a person's assistant operates."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="the extra `mcp` is not installed")

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from orchestrator import Completion, ErrorReport
from orchestrator.client.client import Client as Stack
from orchestrator.client.current import TOKEN_VARIABLE
from orchestrator.ledger import SessionState
from orchestrator.mcp.operator_server import build_operator_server
from orchestrator.worker.context.context import Context
from tests.examined import broken_by_the_trail
from tests.kit import Kit
from tests.workers import Workers

from .conftest import sent

Call = Callable[..., Awaitable[dict[str, Any]]]


def with_tools(server: Any, work: Callable[[Call], Awaitable[Any]], *, mode: str = "auto") -> Any:
    """What ``work`` returns, given a way to call the tools of a server."""

    async def main() -> Any:
        async with Client(server, mode=mode) as client:

            async def call(tool: str, **arguments: Any) -> dict[str, Any]:
                result = await client.call_tool(tool, arguments)
                if result.is_error:
                    raise RuntimeError(result.content[0].text)
                assert result.structured_content is not None
                return result.structured_content

            return await work(call)

    return anyio.run(main)


async def end_of(call: Call, child: str) -> dict[str, Any]:
    """How a child ends, asked for until it has."""
    ended: list[dict[str, Any]] = []
    while not ended:
        ended = (await call("wait", sessions=[child]))["ended"]
    return ended[0]


def stdio(ctx: Context) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "orchestrator", "program", "mcp"],
        env={**os.environ, **ctx.environment()},
    )


def test_a_task_is_given_in_full_and_its_end_is_typed(kit: Kit, workers: Workers) -> None:
    """What the context takes, the tool takes; what the callback has, the answer has."""
    seen: dict[str, Any] = {}

    async def work(call: Call) -> str:
        done = await call(
            "delegate",
            agent="coder",
            task={"description": "Make it quick.", "success_criteria": [{"name": "time", "text": "<=80"}]},
            priority="critical",
            objectives=["halve its time"],
            expires_s=600,
            retry_policy={"max_attempts": 7, "backoff_strategy": "linear", "timeout_seconds": 60},
            time_limit_s=300,
        )
        ended = await end_of(call, done["session"])
        seen.update(ended["completion"], child=done["session"])
        assert ended["error_report"] is None
        refused = await call("delegate", agent="breaker", task="Break.")
        ended = await end_of(call, refused["session"])
        seen["error"] = ended["error_report"]["recommended_action"]
        return "done"

    kit.agent("cli", role="coordinator")(lambda ctx: with_tools(stdio(ctx), work, mode="auto"))

    @kit.agent("coder")
    def coder(ctx: Context) -> Completion:
        assert ctx.task.objectives[0].text == "halve its time"
        metric = ctx.task.success_criteria[0]
        return Completion(
            status="partial-success", result="90", quality_metrics=[{"name": metric.name, "text": "90"}]
        )

    @kit.agent("breaker")
    def breaker(ctx: Context) -> ErrorReport:
        return ErrorReport(message="broke", recommended_action="retry")

    root = kit.submit("cli")
    workers.answer(root)
    assert (seen["status"], seen["result"], seen["error"]) == ("partial-success", "90", "retry")
    assert seen["quality_metrics"] == [{"name": "time", "text": "90"}]
    child = next(one for one in kit.children(root) if one.id == seen["child"])
    assert child.priority == "critical"
    delegated = sent(kit, "task-delegation", "critical")
    (header,) = [m.header for m in delegated if m.header.message_id == child.message]
    assert header.expiration is not None
    assert header.retry_policy is not None
    assert (header.retry_policy.max_attempts, header.retry_policy.timeout_seconds) == (7, 60)
    assert broken_by_the_trail(kit) == []


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_takes_full_part_in_its_session(kit: Kit, workers: Workers, mode: str) -> None:
    """It delegates, waits, answers its child, asks its parent and shows its progress, by tools alone."""
    told = kit.lead("cli: use your tools", reply=lambda asked: f"{asked.text} Yes.")

    async def work(call: Call) -> str:
        me = await call("session")
        assert (me["agent"], me["prompt"]) == ("cli", "use your tools")
        child = (await call("delegate", agent="helper", task="help me"))["session"]
        ended: list[dict[str, Any]] = []
        while not ended:
            found = await call("wait", sessions=[child])
            for question in found["questions"]:
                assert await call("reply", question=question["question"], text="because") == {
                    "accepted": True
                }
            ended = found["ended"]
        assert (ended[0]["status"], found["ask_again_s"]) == ("completed", None)
        await call("status", progress=50, activity="half")
        asked = await call("ask", message="May I?", timeout_s=0)
        while asked["ask_again_s"] is not None:
            asked = await call("answer", question=asked["question"])
        raised = await call("raise_callback", message="no config", kind="blocker")
        reply = await call("answer", question=raised["question"])
        read = await call("read_result", session=child, attachment="notes", offset=1, length=2)
        assert read == {"text": "ot", "status": "completed", "size": 4, "next_offset": 3}
        results = (await call("results"))["results"]
        assert results[0]["attachments"] == ["notes"]
        assert [r["text"] for r in results] == ["because"]
        return " ".join([ended[0]["text"], asked["reply"], reply["reply"]])

    kit.agent("cli", role="coordinator")(lambda ctx: with_tools(stdio(ctx), work, mode=mode))

    @kit.agent("helper")
    def helper(ctx: Context) -> str:
        ctx.attach("notes", "note")
        return ctx.ask("why?")

    workers.answer(kit.submit("lead"))
    assert sorted(f"{callback.kind}: {callback.text}" for callback in told) == [
        "blocker: no config",
        "completion: because May I? Yes. no config Yes.",
        "query: May I?",
    ]
    assert broken_by_the_trail(kit) == []


def test_a_server_that_is_killed_loses_and_doubles_nothing(kit: Kit, workers: Workers) -> None:
    """The next one is given the same child for the same key, and the end that the first one had."""
    seen: list[Any] = []

    @kit.agent("cli", role="coordinator")
    def cli(ctx: Context) -> str:
        async def ask(call: Call) -> None:
            child = (await call("delegate", agent="helper", task="help me", key="one"))["session"]
            seen.append((child, (await call("wait", sessions=[child]))["ended"]))

        async def ask_and_kill(call: Call) -> None:
            await ask(call)
            servers = children_of(os.getpid())
            assert len(servers) == 1
            os.kill(servers[0], signal.SIGKILL)
            await call("session")

        with pytest.raises(BaseExceptionGroup):
            with_tools(stdio(ctx), ask_and_kill)
        with_tools(stdio(ctx), ask)
        return "done"

    kit.agent("helper")(lambda _: "helped")
    root = kit.submit("cli")
    assert workers.answer(root) == "done"
    assert seen[0] == seen[1]
    assert seen[0][1][0]["text"] == "helped"
    assert len(kit.children(root)) == 1
    assert broken_by_the_trail(kit) == []


def test_over_http_the_token_of_the_session_is_asked_for(kit: Kit, unused_port: int) -> None:
    url = f"http://127.0.0.1:{unused_port}/mcp"

    @kit.agent("cli", role="coordinator")
    def cli(ctx: Context) -> str:
        env = {**os.environ, **ctx.environment()}
        words = f"-m orchestrator program mcp --http --port {unused_port}"
        arguments = [sys.executable, *words.split()]
        server = subprocess.Popen(arguments, env=env, stderr=subprocess.PIPE, text=True)
        try:
            assert server.stderr is not None
            assert server.stderr.readline().strip() == f"serving {url}"
            return str(anyio.run(over_http, env[TOKEN_VARIABLE]))
        finally:
            server.terminate()
            server.communicate()

    async def over_http(token: str) -> str:
        async with httpx2.AsyncClient() as plain:
            for _ in range(200):
                try:
                    refused = await plain.post(url, headers={"authorization": "Bearer other"}, json={})
                    break
                except httpx2.ConnectError:
                    await anyio.sleep(0.05)
            assert refused.status_code == 401
            assert (await plain.post(url, json={})).status_code == 401
        async with (
            httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=30) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            result = await client.call_tool("session", {})
            return str(result.structured_content["agent"])

    root = kit.begin("cli", ends="finished")
    assert kit.answer(root) == "cli"


def test_what_is_wrong_is_told_to_the_model(kit: Kit) -> None:
    said: list[str] = []

    async def work(call: Call) -> None:
        for tool, arguments in (
            ("delegate", {"agent": "", "task": "x"}),
            ("wait", {"sessions": ["ses_00000000000000000000000000"]}),
            ("wait", {"timeout_s": 1000}),
            ("ask", {"message": " "}),
        ):
            with pytest.raises(RuntimeError) as caught:
                await call(tool, **arguments)
            said.append(str(caught.value))

    kit.agent("cli", role="coordinator")(lambda ctx: with_tools(stdio(ctx), work))
    kit.begin("cli", ends="finished")
    assert "needs an agent and a description" in said[0]
    assert "is not a child of" in said[1]
    assert "less than or equal to 50" in said[2]
    assert "without a message" in said[3]


def test_without_a_session_the_command_says_what_to_do() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "program", "mcp"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=100,
    )
    assert done.returncode == 2
    assert "works for no session" in done.stderr
    assert done.stdout == ""


def test_an_assistant_submits_watches_and_answers(kit: Kit, workers: Workers) -> None:
    released = threading.Event()

    @kit.agent("boss", role="coordinator")
    def boss(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("asker", ctx.prompt)
            return "waiting"
        if ctx.cause == "user":
            return ctx.prompts[0]
        return ctx.callbacks[-1].text if ctx.callbacks[-1].kind == "completion" else "not mine"

    @kit.agent("asker")
    def asker(ctx: Context) -> str:
        released.set()
        return ctx.ask("which colour?")

    async def work(call: Call) -> None:
        assert {a["agent"] for a in (await call("agents"))["agents"]} >= {"boss", "asker"}
        root = (await call("submit", agent="boss", prompt="paint", key="k"))["session"]
        assert await call("submit", agent="boss", prompt="paint", key="k") == {"session": root, "new": False}
        open_questions: list[dict[str, Any]] = []
        while not open_questions:
            open_questions = (await call("questions", session=root))["questions"]
        assert (open_questions[0]["text"], open_questions[0]["agent"]) == ("which colour?", "asker")
        assert (await call("wait", session=root, timeout_s=0))["ask_again_s"] == 1
        await call("reply", question=open_questions[0]["question"], text="blue")
        answer = await call("wait", session=root, timeout_s=50)
        assert (answer["state"], answer["result"], answer["ask_again_s"]) == ("finished", "blue", None)
        for _ in range(2):
            assert (await call("resume", session=root, prompt="and again", key="r"))["item"]
        while (answer := await call("wait", session=root, timeout_s=50))["result"] != "and again":
            assert answer["error"] is None
        assert len(kit.ledger.runs(root)) == 4  # the question, too, has resumed it, and its child's end
        tree = await call("status", session=root)
        assert [s["agent"] for s in tree["sessions"]] == ["boss", "asker"]
        only = {"states": ["finished"], "agents": ["boss"], "since": "1h", "cost_to": "0"}
        assert [s["session"] for s in (await call("sessions", **only))["sessions"]] == [root]
        assert not (await call("sessions", states=["failed"], until="1h", cost_from="0.01"))["sessions"]
        with pytest.raises(RuntimeError, match="choose from 'scheduled', 'pending'"):
            await call("sessions", states=["lost"])
        plan = '[{"role": "asker", "task": "a", "caller": "boss"}]'
        planned = (await call("plan", plan=plan))["session"]
        await call("stop", session=planned)
        stopped = await call("wait", session=planned, timeout_s=50)
        assert (stopped["state"], stopped["result"]) == ("stopped", None)
        assert "stopped by the operator's assistant" in stopped["error"]
        with pytest.raises(RuntimeError, match="no agent named 'ghost'"):
            await call("submit", agent="ghost", prompt="boo")

    with Stack(kit.settings) as client:
        with_tools(build_operator_server(client), work)
    assert released.is_set()
    assert kit.ledger.session(next(iter(kit.ledger.all_roots(0)))).state in set(SessionState)


def test_an_assistant_that_stops_an_idle_parent_is_told_of_those_below_it(kit: Kit, workers: Workers) -> None:
    at_work, let_go = threading.Event(), threading.Event()

    @kit.agent("boss", role="coordinator")
    def boss(ctx: Context) -> str:
        ctx.delegate("stubborn", ctx.prompt)
        return "waiting"

    @kit.agent("stubborn")
    def stubborn(_: Context) -> str:
        at_work.set()
        let_go.wait(60)
        return "done"

    async def work(call: Call) -> None:
        root = (await call("submit", agent="boss", prompt="paint"))["session"]
        await anyio.to_thread.run_sync(at_work.wait)
        while (await call("status", session=root))["sessions"][0]["state"] != "idle":
            pass
        first = await call("stop", session=root)
        assert first == {"outcome": "ended", "stopping": 1, "ask_again_s": 1}
        again = await call("stop", session=root)
        assert again == {"outcome": "over", "stopping": 1, "ask_again_s": 1}
        let_go.set()
        while (again := await call("stop", session=root))["stopping"]:
            assert again["ask_again_s"] == 1
        assert again == {"outcome": "over", "stopping": 0, "ask_again_s": None}

    with Stack(kit.settings) as client:
        with_tools(build_operator_server(client), work)


def test_an_assistant_shows_what_waits_for_its_person_and_answers_only_where_it_may(
    kit: Kit, workers: Workers
) -> None:
    @kit.agent("ops")
    def ops(ctx: Context) -> str:
        one = ctx.post_approval("deploy", {"version": "7"}, reason="a new version")
        two = ctx.post_approval("announce")
        found = [ctx.approvals.await_decision(name, timeout_s=50) for name in (one, two)]
        return "; ".join(map(str, found))

    async def look(call: Call) -> None:
        session = (await call("submit", agent="ops", prompt="go"))["session"]
        asked: list[dict[str, Any]] = []
        while len(asked) < 2:
            asked = (await call("approvals", session=session))["approvals"]
        assert (asked[0]["tool"], asked[0]["arguments"]) == ("deploy", {"version": "7"})
        with pytest.raises(RuntimeError, match="approve"):
            await call("approve", approval=asked[0]["id"], digest=asked[0]["digest"])

    async def answer(call: Call) -> None:
        deploy, announce = (await call("approvals"))["approvals"]
        with pytest.raises(RuntimeError, match="not 00000000"):
            await call("approve", approval=deploy["id"], digest="00000000")
        await call("approve", approval=deploy["id"], digest=deploy["digest"], comment="good")
        await call("deny", approval=announce["id"], comment="hush")
        done = await call("wait", session=deploy["session"], timeout_s=50)
        assert done["result"] == "approved: good; denied: hush"

    with Stack(kit.settings) as client:
        with_tools(build_operator_server(client), look)
        with_tools(build_operator_server(client, may_approve=True), answer)


def children_of(pid: int) -> list[int]:
    """The processes of MCP servers that a process has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
            command = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if re.search(rf"^PPid:\t{pid}$", text, re.MULTILINE) and b"orchestrator\0mcp" in command:
            found.append(int(status.parent.name))
    return found


@pytest.fixture
def unused_port() -> int:
    """A port of loopback that nobody uses now."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
