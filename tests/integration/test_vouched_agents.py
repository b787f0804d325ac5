"""Who can write to Redis is not who says what an agent may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.agents.registry import AgentRecord
from orchestrator.redisdb import keys
from tests.claims import forged
from tests.kit import Kit

RECORD = AgentRecord(name="clerk", role="specialist", accepts_from=("lead",), queue="orchestra.clerk")


@pytest.fixture
def kit(kit: Kit) -> Kit:
    """A stack to which the agent is known."""
    kit.parts.agents.announce([RECORD])
    return kit


def look_up(kit: Kit) -> AgentRecord | None:
    """What parts that remember no look-up find."""
    return kit.beside().parts.agents.get("clerk")


@pytest.mark.parametrize(
    "changes",
    [{"role": "coordinator"}, {"accepts_from": None}, {"queue": "orchestra.mine"}, {"invented": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_an_edited_record_counts_as_none(kit: Kit, changes: dict[str, Any]) -> None:
    """Roles and lists, executor and queue: whatever is changed, the agent is not registered until it is announced."""
    assert look_up(kit) == RECORD
    signed: Any = kit.redis.get(keys.agent("clerk"))
    kit.redis.set(keys.agent("clerk"), forged(signed, **changes))
    assert look_up(kit) is None
    assert kit.beside().parts.agents.names() == []
    kit.parts.agents.announce([RECORD])
    assert look_up(kit) == RECORD


def test_the_record_of_one_agent_is_no_record_of_another(kit: Kit) -> None:
    kit.parts.agents.announce([AgentRecord(name="lead", role="coordinator")])
    stolen = kit.redis.get(keys.agent("lead"))
    kit.redis.set(keys.agent("clerk"), stolen or b"")
    assert look_up(kit) is None


@pytest.mark.parametrize("value", [b"", b"\xff", RECORD.model_dump_json().encode()], ids=range(3))
def test_junk_counts_as_none(kit: Kit, value: bytes) -> None:
    kit.redis.set(keys.agent("clerk"), value)
    assert look_up(kit) is None


def test_the_word_of_another_operator_does_not_count(kit: Kit, tmp_path: Path) -> None:
    """One who made an operator of his own, in a Redis that he emptied for that, and put the record back."""
    kept = kit.redis.get(keys.operator_key())
    kit.redis.delete(keys.operator_key())
    kit.beside(data=tmp_path / "mallory").parts.agents.announce(
        [RECORD.model_copy(update={"role": "coordinator"})]
    )
    kit.redis.set(keys.operator_key(), kept or b"")
    assert look_up(kit) is None
