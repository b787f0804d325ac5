"""Model agents on a real ledger, against a scripted provider that the real clients talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pydantic_ai.models.anthropic
import pydantic_ai.models.openai  # noqa: F401
import pytest

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.model_agents import model_agent
from orchestrator.testing import ByInstructions, WireServer
from orchestrator.testing.script import Decide
from tests.kit import Kit

Serve = Callable[[Decide], WireServer]
Model = Callable[..., AgentDefinition]
Cast = Callable[..., WireServer]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start a server with a script; the clients of the providers are sent to it."""
    started: list[WireServer] = []

    def start(script: Decide) -> WireServer:
        server = WireServer(script).start()
        started.append(server)
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def model(kit: Kit) -> Model:
    """Define a model agent and announce it."""

    def define(name: str, **settings: Any) -> AgentDefinition:
        settings.setdefault("backoff_s", 0.001)
        return kit.serve(model_agent(name, **settings))

    return define


@pytest.fixture
def cast(serve: Serve, model: Model) -> Cast:
    """Start a server with a script for each agent, and define these agents; `lead` is a coordinator."""

    def start(**scripts: Decide) -> WireServer:
        server = serve(ByInstructions({f"You play {name}.": script for name, script in scripts.items()}))
        for name in scripts:
            role = {"role": "coordinator"} if name == "lead" else {}
            model(name, instructions=f"You play {name}.", **role)
        return server

    return start
