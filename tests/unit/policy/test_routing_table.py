"""The routing table: the protocol's seven rows, ours, and what a user may change."""

from __future__ import annotations

import tomllib

import pytest

from orchestrator.errors import ConfigurationError
from orchestrator.policy.routing import RoutingTable


def test_the_rows_are_those_of_the_protocol() -> None:
    """Type, sender, recipient, priority, timeout in seconds, attempts including the first."""
    rows = [
        (name, row.sender, row.recipient, row.priority, row.timeout_s, row.attempts)
        for name, row in RoutingTable().items()
    ]
    assert rows[:7] == [
        ("task-delegation", "coordinator", "subordinate", "high", 300, 3),
        ("status-update", "specialist", "delegator", "normal", 120, 1),
        ("task-completion", "specialist", "delegator", "high", 60, 1),
        ("error", "any", "escalation-path", "critical", 30, 2),
        ("query", "specialist", "delegator", "normal", 180, 2),
        ("review-request", "specialist", "code-reviewer", "high", 86_400, 1),
        ("escalation", "coordinator", "tech-lead", "critical", 60, 3),
    ]
    assert [row[0] for row in rows[7:]] == ["reply", "message"]


def test_a_toml_table_overrides_parts_of_rows() -> None:
    """What is not named stays as it was."""
    config = tomllib.loads(
        """
        tech_lead = "architect"
        [task-delegation]
        timeout_s = 10
        [query]
        priority = "high"
        attempts = 5
        """
    )
    table = RoutingTable.load(config)
    assert table.tech_lead == "architect"
    assert (table["task-delegation"].timeout_s, table["task-delegation"].attempts) == (10, 3)
    assert (table["query"].priority, table["query"].attempts) == ("high", 5)
    assert table["error"] == RoutingTable()["error"]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"gossip": {}}, "not a message type"),
        ({"query": {"attempts": 0}}, "attempts"),
        ({"query": {"colour": "red"}}, "colour: there is no such field; the fields are sender, recipient"),
        ({"query": {"timeout_s": float("inf")}}, "timeout_s: Input should be less than or equal to"),
        ({"query": 3}, "must be a table"),
        ({"tech_lead": " "}, "name of an agent"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(config: dict[str, object], sentence: str) -> None:
    """One sentence names the part that is wrong."""
    with pytest.raises(ConfigurationError, match=sentence):
        RoutingTable.load(config)
