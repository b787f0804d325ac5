"""Who can write to Redis is not who says what an agent may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import Container, build_container
from orchestrator.config.settings import load_settings
from orchestrator.redisdb import keys
from tests.claims import forged

RECORD = AgentRecord(name="clerk", role="specialist", accepts_from=("lead",), queue="orchestra.clerk")


@pytest.fixture
def parts(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> Container:
    made = build_container(redis, load_settings(redis_url=redis_url, data=tmp_path / "data"))
    made.agents.announce([RECORD])
    return made


def fresh(parts: Container) -> Container:
    """Parts that remember no look-up."""
    return build_container(parts.redis, parts.settings)


@pytest.mark.parametrize(
    "changes",
    [{"role": "coordinator"}, {"accepts_from": None}, {"queue": "orchestra.mine"}, {"invented": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_an_edited_record_counts_as_none(parts: Container, changes: dict[str, Any]) -> None:
    """Roles and lists, executor and queue: whatever is changed, the agent is not registered until it is announced."""
    assert fresh(parts).agents.get("clerk") == RECORD
    signed: Any = parts.redis.get(keys.agent("clerk"))
    parts.redis.set(keys.agent("clerk"), forged(signed, **changes))
    assert fresh(parts).agents.get("clerk") is None
    assert fresh(parts).agents.names() == []
    parts.agents.announce([RECORD])
    assert fresh(parts).agents.get("clerk") == RECORD


def test_the_record_of_one_agent_is_no_record_of_another(parts: Container) -> None:
    parts.agents.announce([AgentRecord(name="lead", role="coordinator")])
    stolen = parts.redis.get(keys.agent("lead"))
    parts.redis.set(keys.agent("clerk"), stolen or b"")
    assert fresh(parts).agents.get("clerk") is None


@pytest.mark.parametrize("value", [b"", b"\xff", RECORD.model_dump_json().encode()], ids=range(3))
def test_junk_counts_as_none(parts: Container, value: bytes) -> None:
    parts.redis.set(keys.agent("clerk"), value)
    assert fresh(parts).agents.get("clerk") is None


def test_the_word_of_another_operator_does_not_count(
    parts: Container, redis: redis_py.Redis, redis_url: str, tmp_path: Path
) -> None:
    """One who made an operator of his own, in a Redis that he emptied for that, and put the record back."""
    kept = redis.get(keys.operator_key())
    redis.delete(keys.operator_key())
    other = build_container(redis, load_settings(redis_url=redis_url, data=tmp_path / "mallory"))
    other.agents.announce([RECORD.model_copy(update={"role": "coordinator"})])
    redis.set(keys.operator_key(), kept or b"")
    assert fresh(parts).agents.get("clerk") is None
