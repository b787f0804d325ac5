"""A model with the tools of an MCP server that the official SDK runs: what it gives, and how it fails."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from orchestrator.testing import Call, Fail, Say, Script
from tests.kit import Kit
from tests.workers import Workers

from .conftest import Model, Serve

pytestmark = pytest.mark.skipif(find_spec("fastmcp") is None, reason="the extra `llm-mcp` is not installed")

SERVER = '''
import os
import sys
import time
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("stock")
MARKS = Path(sys.argv[1])


@server.tool()
def count(item: str) -> str:
    """Count the pieces of an item."""
    with (MARKS / "counted").open("a") as file:
        file.write("x")
    return f"7 of {item} for {os.environ.get('STOCK_USER')}"


@server.tool()
def broken(item: str) -> str:
    """Raise."""
    raise ToolError(f"no {item} on any shelf")


@server.tool()
def slow(item: str) -> str:
    """Take longer than anybody waits."""
    time.sleep(60)
    return item


@server.tool()
def dies(item: str) -> str:
    """End the server, the first time."""
    mark = MARKS / "died"
    if not mark.exists():
        mark.touch()
        os._exit(9)
    return f"{item} at last"


server.run("stdio")
'''


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options of an agent that has the server."""
    (tmp_path / "stock.py").write_text(SERVER)
    monkeypatch.setenv("STOCK_NAME", "Ada")
    server = {
        "id": "stock",
        "command": sys.executable,
        "args": [str(tmp_path / "stock.py"), str(tmp_path)],
        "env": {"STOCK_USER": "$STOCK_NAME"},
    }
    return {"instructions": "You keep stock.", "mcp": [server]}


def test_a_model_calls_the_tools_of_a_server(
    kit: Kit, workers: Workers, model: Model, serve: Serve, stock: dict[str, Any]
) -> None:
    server = serve(Script(Say(calls=[Call("count", item="nuts")]), lambda request: Say(request.last)))
    model("keeper", **stock)
    assert "7 of nuts for Ada" in workers.answer(kit.submit("keeper"))
    assert {"count", "broken", "slow", "dies"} <= set(server.requests[0].tools)


def test_a_call_that_is_recorded_is_not_made_again(
    kit: Kit, model: Model, serve: Serve, stock: dict[str, Any], tmp_path: Path
) -> None:
    serve(Script(Say(calls=[Call("count", item="nuts")]), Fail(500), lambda request: Say(request.last)))
    model("keeper", **stock)
    session = kit.begin("keeper", ends="retry")
    assert kit.again(session) == "finished"
    assert "7 of nuts" in (kit.answer(session) or "")
    assert (tmp_path / "counted").read_text() == "x"


def test_a_tool_that_raises_is_told_to_the_model(
    kit: Kit, workers: Workers, model: Model, serve: Serve, stock: dict[str, Any]
) -> None:
    """As often as it calls the tool: an error of a tool uses up no retry."""
    calls = [Say(calls=[Call("broken", item=f"nuts {n}")]) for n in range(4)]
    serve(Script(*calls, lambda request: Say(request.last)))
    model("keeper", **stock)
    assert "no nuts 3 on any shelf" in workers.answer(kit.submit("keeper"))


def test_a_slow_tool_is_given_up(
    kit: Kit, workers: Workers, model: Model, serve: Serve, stock: dict[str, Any]
) -> None:
    serve(Script(Say(calls=[Call("slow", item="nuts")]), lambda request: Say(request.last)))
    stock["mcp"][0]["timeout_s"] = 1
    model("keeper", **stock)
    said = workers.answer(kit.submit("keeper"))
    assert "timed out" in said


def test_a_server_that_dies_in_a_call_is_started_again_for_the_next_one(
    kit: Kit, workers: Workers, model: Model, serve: Serve, stock: dict[str, Any]
) -> None:
    again = Say(calls=[Call("dies", item="nuts")])
    server = serve(Script(again, again, lambda request: Say(request.last)))
    model("keeper", **stock)
    assert "nuts at last" in workers.answer(session := kit.submit("keeper"))
    assert "Connection closed" in server.requests[1].last
    assert [run.attempt for run in kit.ledger.runs(session)] == [1]


@pytest.mark.parametrize("command", ["no-such-program-anywhere", "/bin/false"])
def test_a_server_that_does_not_start_fails_the_run_in_one_sentence(
    kit: Kit, model: Model, serve: Serve, command: str
) -> None:
    server = serve(Script(Say("never")))
    model("keeper", instructions="You keep.", mcp=[{"id": "stock", "command": command}], attempts=1)
    session = kit.begin("keeper")
    reason = kit.ledger.session(session).reason
    assert "stock" in reason
    assert server.requests == []
