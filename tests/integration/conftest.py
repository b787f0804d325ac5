"""A kit for each test, and what is set around it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.client.client import Client
from orchestrator.config.settings import load_settings
from orchestrator.doctor import examination
from tests.commands import Orchestra
from tests.crew import Crew
from tests.kit import Kit
from tests.workers import Workers


@pytest.fixture
def kit(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> Kit:
    """A stack with short times."""
    times = {"heartbeat_s": 0.05, "lease_s": 1, "stop_grace_s": 20, "run_time_limit_s": 30}
    return Kit.on(redis, load_settings(redis_url=redis_url, data=tmp_path, **times))


@pytest.fixture
def impatient_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor looks a second time at once, where nobody is at work who could put right what it found."""
    monkeypatch.setattr(examination, "SECOND_LOOKS", (0.0,))


@pytest.fixture
def client(kit: Kit) -> Iterator[Client]:
    """A client of the kit's stack."""
    with Client(kit.settings) as opened:
        yield opened


@pytest.fixture
def workers(kit: Kit) -> Iterator[Workers]:
    """Router, callback service and slots at work on the kit's stack."""
    with Workers(kit) as running:
        yield running


@pytest.fixture
def crew(kit: Kit, tmp_path: Path) -> Crew:
    """Agents that are real programs."""
    return Crew(kit, tmp_path / "crew")


@pytest.fixture
def orchestra(kit: Kit) -> Orchestra:
    """Run a command on the kit's stack: its result has exit_code, stdout and stderr."""
    return kit.orchestra
