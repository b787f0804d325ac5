"""Who may send what to whom."""

from __future__ import annotations

import pytest

from orchestrator.policy.authorisation import Principal, refusal
from orchestrator.policy.routing import RoutingTable

OPERATOR = Principal(name="operator", role="orchestrator")
LEAD = Principal(name="lead", role="coordinator")
OTHER = Principal(name="other", role="coordinator")
REVIEWER = Principal(name="reviewer", role="specialist")
TESTER = Principal(name="tester", role="specialist")
CODE_REVIEWER = Principal(name="code-reviewer", role="specialist")
TECH_LEAD = Principal(name="tech-lead", role="coordinator")
TAGGED = Principal(name="crew", role="coordinator", may_send_to=("tag:fast",), tags=("crew",))
PICKY_OF_TAGS = Principal(name="fast", role="specialist", accepts_from=("tag:crew",), tags=("fast", "cheap"))
PICKY = Principal(name="picky", role="specialist", accepts_from=("lead",))
BOUND = Principal(name="bound", role="coordinator", may_send_to=("reviewer",))


@pytest.mark.parametrize(
    ("message_type", "sender", "recipient", "reason"),
    [
        ("task-delegation", OPERATOR, LEAD, None),
        ("task-delegation", LEAD, REVIEWER, None),
        ("task-delegation", LEAD, OTHER, None),  # equal rank
        ("task-delegation", REVIEWER, TESTER, None),  # equal rank; layer 3 warns
        ("task-delegation", REVIEWER, LEAD, "equal or lower rank"),
        ("task-delegation", LEAD, OPERATOR, "equal or lower rank"),
        ("status-update", REVIEWER, LEAD, None),
        ("task-completion", LEAD, OPERATOR, None),  # a coordinator reports too
        ("reply", REVIEWER, LEAD, None),
        ("error", REVIEWER, LEAD, None),
        ("query", REVIEWER, LEAD, None),
        ("escalation", LEAD, TECH_LEAD, None),
        ("escalation", LEAD, OPERATOR, None),  # the end of the path
        ("escalation", LEAD, OTHER, "goes to 'tech-lead'"),
        ("escalation", REVIEWER, TECH_LEAD, "ask whoever gave 'reviewer' its task"),
        ("review-request", REVIEWER, CODE_REVIEWER, None),
        ("review-request", REVIEWER, TESTER, "goes to 'code-reviewer'"),
        ("message", REVIEWER, TESTER, None),
        ("task-delegation", LEAD, PICKY, None),
        ("task-delegation", OTHER, PICKY, "only from lead"),
        ("task-delegation", BOUND, REVIEWER, None),
        ("task-delegation", BOUND, TESTER, "only to reviewer"),
        ("message", BOUND, TESTER, "only to reviewer"),
        ("task-completion", BOUND, LEAD, None),  # whoever gave it the task, whatever its list says
        ("task-delegation", TAGGED, PICKY_OF_TAGS, None),
        ("task-delegation", LEAD, PICKY_OF_TAGS, "only from tag:crew"),
        ("task-delegation", TAGGED, TESTER, "only to tag:fast"),
        ("reply", OTHER, PICKY, None),  # it has asked
        ("task-delegation", OPERATOR, PICKY, None),  # whose stack it is
    ],
)
def test_table_ranks_and_lists_decide(
    message_type: str, sender: Principal, recipient: Principal, reason: str | None
) -> None:
    """A refusal says which rule, about whom, and what would allow it."""
    found = refusal(message_type, sender, recipient, RoutingTable())
    assert found is None if reason is None else reason in str(found)
