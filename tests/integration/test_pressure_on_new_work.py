"""Too long streams refuse new work and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import build_container
from orchestrator.client.client import Client
from orchestrator.config.settings import load_settings
from orchestrator.errors import StreamFull
from orchestrator.streams import RedisStreams, StreamId
from orchestrator.streams.pressure import Backpressure


def test_a_submission_is_refused_while_the_routers_are_behind(
    redis: redis_py.Redis, redis_url: str, tmp_path: Path
) -> None:
    """Nothing is written; when there is room again the same submission goes through."""
    settings = load_settings(redis_url=redis_url, data=tmp_path, stream_max_entries=5)
    parts = build_container(redis, settings)
    parts.pressure = Backpressure(redis, limit=5, retry_for_s=0.02, max_delay_s=0, memory_s=0)
    parts.agents.announce([AgentRecord(name="lead", role="coordinator")])
    streams, stream = RedisStreams(redis), StreamId(0, "task-delegation", "high")
    entries = [streams.publish(stream, b"x") for _ in range(5)]
    with pytest.raises(StreamFull, match="new work is refused until the routers catch up"):
        Client(parts=parts).submit("lead", "go", key="k")
    assert parts.ledger.roots(0) == []
    redis.xdel("ao:{00}:msg:task-delegation:high", *entries)
    assert Client(parts=parts).submit("lead", "go", key="k").new
