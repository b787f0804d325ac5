"""Each extra alone, in an environment of its own that `make test-wheel` makes: it brings what it says, and nothing is missing."""

from __future__ import annotations

import json
import subprocess
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.postgres import PostgresServer
from tests.wheel import RESOLVED, ROOT, installed

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(RESOLVED is None, reason="make test-wheel makes the environments"),
]

#: Imports everything of ours, and prints the names of the modules of others that are not there.
IMPORT_ALL = """
import importlib, json, pkgutil, orchestrator
missing = set()
for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
    if module.name == "orchestrator.audit.migrations.env" or module.name.endswith("__main__"):
        continue  # a script of Alembic; programs
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        missing.add(error.name.partition(".")[0])
print(json.dumps(sorted(missing)))
"""
#: What only an extra brings: the names that modules of ours import at their top, and the extras that bring them.
BROUGHT = {
    "acp": {"acp"},
    "anyio": {"anthropic", "llm", "llm-mcp", "mcp", "openai"},
    "greenlet": {"testing"},
    "itsdangerous": {"console"},
    "jinja2": {"console", "report"},
    "mcp": {"llm-mcp", "mcp"},
    "prometheus_client": {"flower", "metrics"},
    "pydantic_ai": {"anthropic", "llm", "llm-mcp", "openai"},
    "pytest": set(),  # users of the test kit have it
    "sse_starlette": {"console"},
    "starlette": {"console"},
    "uvicorn": {"console", "mcp"},
}
MODEL = """
from orchestrator import model_agent
from orchestrator.testing import InProcessStack, Say, Script, WireServer, scripted_model
import os
script = Script(Say("two words"))
"""
WIRE = (
    MODEL
    + """
with WireServer(script) as server:
    os.environ.update(server.environment())
    with InProcessStack([model_agent("one", model="{model}")]) as stack:
        print(stack.run("one", "What?").text)
"""
)
STOCK = """
import sys
from mcp.server import MCPServer
server = MCPServer("stock")
@server.tool()
def count(item: str) -> str:
    return "7 of " + item
server.run("stdio")
"""
SERVED = (
    MODEL.replace("Script(Say", "Script(Say(calls=[Call('count', item='nuts')]), Say").replace(
        "Say,", "Call, Say,"
    )
    + f"""
import pathlib, sys
pathlib.Path("stock.py").write_text({STOCK!r})
stock = {{"id": "stock", "command": sys.executable, "args": ["stock.py"]}}
with InProcessStack([model_agent("one", model=scripted_model(script), mcp=[stock])]) as stack:
    print(stack.run("one", "How many?").text)
"""
)
#: What shows that an extra works; each ends by printing "two words". Flower runs in the quickstart.
USES = {
    "bare": "from orchestrator import Client, agent\nprint('two words')",
    "acp": "from orchestrator.worker.executors.command import acp\nprint('two words')",
    "anthropic": WIRE.format(model="anthropic:claude-opus-4-5"),
    "console": """
import asyncio
from orchestrator.console import app
said = []
async def send(message):
    said.append(message)
async def receive():
    return {"type": "http.disconnect"}
asked = {"type": "http", "method": "GET", "path": "/static/icon.svg", "root_path": "", "query_string": b"", "headers": [(b"host", b"x")]}
asyncio.run(app({**asked, "http_version": "1.1", "scheme": "http", "server": ("x", 80), "client": ("127.0.0.1", 1)}, receive, send))
print("two words" if said[0]["status"] == 200 else said)
""",
    "flower": "from orchestrator.celery import app\nimport flower.command\nprint('two words')",
    "llm": MODEL
    + "with InProcessStack([model_agent('one', model=scripted_model(script))]) as stack:\n"
    + "    print(stack.run('one', 'What?').text)",
    "llm-mcp": SERVED,
    "mcp": """
import subprocess, sys, json
hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
command = [sys.executable, "-m", "orchestrator", "program", "mcp", "--operator"]
told = subprocess.run(command, input=call + "\\n", capture_output=True, text=True)
print("two words" if '"serverInfo"' in told.stdout else told)
""",
    "metrics": """
import subprocess, sys
with subprocess.Popen([sys.executable, "-m", "orchestrator", "metrics", "--port", "0"], stderr=subprocess.PIPE, text=True) as serving:
    print("two words" if serving.stderr.readline().startswith("serving http://") else "none")
    serving.terminate()
""",
    "openai": WIRE.format(model="openai-chat:gpt-5"),
    "postgres": "import os, pathlib\nfrom orchestrator.audit import AuditStore\n"
    "print('two words', AuditStore(os.environ['ORCHESTRA_AUDIT_URL']).id[:0])",
    "report": """
from orchestrator.audit.report import Report
from orchestrator.console.rendering import report_page
empty = Report(database="a trail", made_ms=0, since_ms=None, until_ms=None, by="hour")
print("two words" if "<h1>Audit report" in report_page(empty) else "none")
""",
    "testing": """
from orchestrator import agent
from orchestrator.testing import ScriptedSession, explore
@agent("one")
def one(ctx):
    return ctx.prompt
assert explore([one], "two words", 3).answer == "two words"
print(ScriptedSession(one, "two words").run().answer)
""",
}


@pytest.mark.parametrize("extra", USES)
def test_an_extra_brings_what_it_says_and_ours_needs_nothing_else(
    extra: str,
    tmp_path: Path,
    redis_url: str,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> None:
    environment = installed(tmp_path_factory, "" if extra == "bare" else extra)
    # Some modules look for a stack when they are imported.
    env = environment.env | {"ORCHESTRA_REDIS_URL": redis_url}
    if extra == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        env = env | {"ORCHESTRA_AUDIT_URL": server.make()}
    missing, printed = (
        subprocess.run(
            [environment.bin / "python", "-W", "ignore", "-c", script],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        for script in (IMPORT_ALL, USES[extra])
    )
    assert missing.returncode == 0, missing.stderr
    assert set(json.loads(missing.stdout)) <= {
        name for name, extras in BROUGHT.items() if extra not in extras
    }
    assert printed.stdout.strip() == "two words", printed.stdout + printed.stderr


@pytest.mark.skipif(RESOLVED is None or RESOLVED.name != "oldest", reason="it is about the oldest releases")
@pytest.mark.parametrize("extra", USES)
def test_the_oldest_releases_are_those_that_are_promised(
    extra: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """An installer that takes newer ones would show nothing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"].get(extra, [])]
    libraries = str(installed(tmp_path_factory, "" if extra == "bare" else extra).libraries)
    there = {canonicalize_name(found.name): found.version for found in distributions(path=[libraries])}
    for requirement in filter(lambda each: each.specifier, map(Requirement, asked)):
        lower = next(each.version for each in requirement.specifier if each.operator == ">=")
        promised = Version(lower).release
        assert Version(there[canonicalize_name(requirement.name)]).release[: len(promised)] == promised


def test_each_extra_is_in_the_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(USES) == {"bare", *project["optional-dependencies"]} - {"test", "dev"}
