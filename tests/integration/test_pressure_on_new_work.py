"""Too long streams refuse new work and nothing else."""

from __future__ import annotations

import pytest

from orchestrator.agents.registry import AgentRecord
from orchestrator.client.client import Client
from orchestrator.errors import StreamFull
from orchestrator.streams.pressure import Backpressure
from tests.kit import Kit


def test_a_submission_is_refused_while_the_routers_are_behind(kit: Kit) -> None:
    """Nothing is written; when there is room again the same submission goes through."""
    parts = kit.beside(stream_max_entries=5).parts
    parts.pressure = Backpressure(kit.redis, limit=5, retry_for_s=0.02, max_delay_s=0, memory_s=0)
    parts.agents.announce([AgentRecord(name="lead", role="coordinator")])
    entries = [kit.publish(b"x", "task-delegation", "high") for _ in range(5)]
    with pytest.raises(StreamFull, match="new work is refused until the routers catch up"):
        Client(parts=parts).submit("lead", "go", key="k")
    assert parts.ledger.roots(0) == []
    kit.redis.xdel("ao:{00}:msg:task-delegation:high", *entries)
    assert Client(parts=parts).submit("lead", "go", key="k").new
