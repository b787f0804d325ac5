"""Where the programs are, what each of them needs to be told, and a stack that runs them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import redis as redis_py

from orchestrator.config.settings import load_settings
from tests.crew import ROOT, Crew
from tests.kit import Kit
from tests.programs.server import Call, ModelServer

#: Where `make test-programs` installs them.
FOLDER: Final = ROOT / ".programs"
BIN: Final = FOLDER / "node_modules" / ".bin"
_MCP: Final = {"command": str(ROOT / ".venv" / "bin" / "orchestra"), "args": ["mcp"]}
_SESSION: Final = ("ORCHESTRA_SESSION_SOCKET", "ORCHESTRA_SESSION_TOKEN")


@dataclass(frozen=True, kw_only=True)
class Program:
    """What a program has to be told: the same as on the page on command-line agents."""

    args: Callable[[str], tuple[str, ...]]  #: of a model's address
    env: Callable[[str], dict[str, str]]  #: of the worker: what the preset passes on
    set_env: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  #: below its home
    shell: Callable[[str], Call]  #: how it runs a shell command


PROGRAMS: Final[dict[str, Program]] = {
    "claude": Program(
        args=lambda _: (
            *("--allowedTools", "Bash", "mcp__orchestra"),
            *("--mcp-config", json.dumps({"mcpServers": {"orchestra": _MCP}})),
        ),
        env=lambda url: {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "key"},
        set_env={
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "MCP_CONNECTION_NONBLOCKING": "0",
            "MCP_CONNECT_TIMEOUT_MS": "60000",
        },
        shell=lambda line: Call("Bash", {"command": line, "description": "as told"}),
    ),
    "codex": Program(
        args=lambda url: (
            *("--model", "local", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            *("-c", 'model_provider="local"'),
            *("-c", f'model_providers.local={{name="local",base_url="{url}/v1",env_key="OPENAI_API_KEY"}}'),
            *("-c", f"mcp_servers.orchestra.command={json.dumps(_MCP['command'])}"),
            *("-c", 'mcp_servers.orchestra.args=["mcp"]', "-c", "mcp_servers.orchestra.required=true"),
            *("-c", f"mcp_servers.orchestra.env_vars={json.dumps(_SESSION)}"),
        ),
        env=lambda _: {"OPENAI_API_KEY": "key"},
        shell=lambda line: Call("exec_command", {"cmd": line}),
    ),
    "gemini": Program(
        args=lambda _: ("--model", "gemini-2.5-flash", "--approval-mode", "yolo"),
        env=lambda url: {
            "GEMINI_API_KEY": "key",
            "GOOGLE_GEMINI_BASE_URL": url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
        files={
            ".gemini/settings.json": json.dumps(
                {
                    "security": {"auth": {"selectedType": "gemini-api-key"}},
                    "privacy": {"usageStatisticsEnabled": False},
                    "mcpServers": {"orchestra": {**_MCP, "env": {name: f"${name}" for name in _SESSION}}},
                }
            )
        },
        shell=lambda line: Call("run_shell_command", {"command": line}),
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("TESTS_PROGRAMS"):
        why = "make test-programs installs the programs, and runs this"
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """A model that answers at once; a test says what."""
    with ModelServer(lambda _: "<response>done</response>") as server:
        yield server


@pytest.fixture
def kit(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> Kit:
    return Kit.on(
        redis,
        load_settings(
            redis_url=redis_url,
            data=tmp_path / "data",
            heartbeat_s=0.5,
            lease_s=10,
            stop_grace_s=20,
            run_time_limit_s=100,
        ),
    )


@dataclass
class Programs:
    """Agents that are the real programs."""

    crew: Crew
    model: ModelServer
    home: Path
    monkeypatch: pytest.MonkeyPatch

    def agent(self, name: str, **options: Any) -> Crew:
        """Define the agent `coder` by the preset of this name, in the environment of a worker that has its keys."""
        program = PROGRAMS[name]
        for variable, value in {**program.env(self.model.url), **proxies(self.model)}.items():
            self.monkeypatch.setenv(variable, value)
        for file, text in program.files.items():
            (self.home / file).parent.mkdir(parents=True, exist_ok=True)
            (self.home / file).write_text(text)
        self.monkeypatch.setenv("HOME", str(self.home))
        self.monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
        options.setdefault("env", tuple(proxies(self.model)))
        options.setdefault("stop_grace_s", 5)
        options.setdefault("set_env", program.set_env)
        self.crew.agent(preset=name, command=(name,), args=program.args(self.model.url), **options)
        return self.crew


def proxies(model: ModelServer) -> dict[str, str]:
    """Variables that send whatever else a program wants of the network to the model, which refuses it."""
    ways = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy")
    return {**dict.fromkeys(ways, model.url), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}


@pytest.fixture
def programs(kit: Kit, model: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    (tmp_path / "home").mkdir()
    return Programs(Crew(kit, tmp_path / "crew"), model, tmp_path / "home", monkeypatch)
