"""The routing table: the protocol's seven rows, ours, what a user may change, and who may send what to whom by it."""

from __future__ import annotations

import tomllib

import pytest

from orchestrator.errors import ConfigurationError
from orchestrator.policy.routing import Principal, RoutingTable, refusal

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
