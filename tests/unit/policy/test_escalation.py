"""The way up: specialist, its coordinator, the tech-lead, the operator."""

from __future__ import annotations

import pytest

from orchestrator.policy.routing import RoutingTable, above


@pytest.mark.parametrize(
    ("name", "role", "escalates_to", "delegator", "known", "expected"),
    [
        ("reviewer", "specialist", "", "lead", {"lead", "tech-lead"}, "lead"),
        ("reviewer", "specialist", "boss", "lead", {"boss", "lead"}, "boss"),  # its own setting first
        ("reviewer", "specialist", "gone", "lead", {"lead"}, "lead"),  # who is not there is passed over
        ("reviewer", "specialist", "", None, {"tech-lead"}, "tech-lead"),
        ("lead", "coordinator", "", "operator", {"tech-lead"}, "tech-lead"),
        ("tech-lead", "coordinator", "", "operator", {"tech-lead"}, "operator"),
        ("lead", "coordinator", "", None, set(), "operator"),
        (
            "reviewer",
            "specialist",
            "",
            "reviewer",
            {"reviewer", "tech-lead"},
            "tech-lead",
        ),  # its own delegator
        ("reviewer", "specialist", "reviewer", "gone", {"reviewer"}, "operator"),
        ("operator", "orchestrator", "", None, {"tech-lead"}, "operator"),  # nobody is above it
    ],
)
def test_the_next_one_up(
    name: str, role: str, escalates_to: str, delegator: str | None, known: set[str], expected: str
) -> None:
    """Never the agent itself; at the end always the operator, whose own failures go no other."""
    found = above(
        name,
        role=role,
        escalates_to=escalates_to,
        delegator=delegator,
        table=RoutingTable(),
        exists=known.__contains__,
    )
    assert found == expected
