"""A kit without workers: a router on a real server, agents that are registered, messages that are signed."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.agents.registry import AgentRecord
from orchestrator.config.settings import load_settings
from orchestrator.doctor import inspection
from tests.kit import Kit
from tests.postgres import TrailDatabase

AGENTS = (
    AgentRecord(name="lead", role="coordinator"),
    AgentRecord(name="reviewer", role="specialist", queue="reviews"),
    AgentRecord(name="tech-lead", role="coordinator"),
    AgentRecord(name="code-reviewer", role="specialist"),
    AgentRecord(name="partner", role="coordinator", executor="foreign"),
)


@pytest.fixture
def kit(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> Kit:
    """An empty stack with five registered agents, `partner` being an external program."""
    made = Kit.on(redis, load_settings(redis_url=redis_url, data=tmp_path, registration_patience_s=0))
    made.parts.agents.announce(AGENTS)
    return made


@pytest.fixture
def database(trail_database: TrailDatabase, monkeypatch: pytest.MonkeyPatch) -> TrailDatabase:
    """The audit database of the stack, of each kind in turn; nobody writes it while it is inspected."""
    monkeypatch.setattr(inspection, "BETWEEN_S", 0.0)
    return trail_database
