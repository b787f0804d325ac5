"""Budgets as users write them, and what an error says of one."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import BudgetExceeded, InputError
from orchestrator.policy.budget import Budget, BudgetState, Cost, describe, most_tokens, refusal


@pytest.mark.parametrize(
    ("given", "limits"),
    [
        ("tokens=120_000, usd=2.5", {"tokens": 120_000, "nano": 2_500_000_000}),
        ("requests=3", {"requests": 3}),
        ({"usd": 0.000_000_001}, {"nano": 1}),
        ({"tokens": 0, "per_s": 60}, {"tokens": 0}),
        (Budget(requests=1), {"requests": 1}),
    ],
)
def test_a_budget_is_what_was_written(given: Any, limits: dict[str, int]) -> None:
    budget = Budget.of(given)
    assert budget.limits == limits


@pytest.mark.parametrize(
    "given",
    ["", "tokens", "tokens=-1", "tokens=1,tokens=2", "eur=1", "usd=1e", {}, {"eur": 1}, {"tokens": "1"}, {"usd": -1},
     {"usd": float("nan")}, {"tokens": True}, {"requests": 2**60}, {"tokens": 10**400}, 7],
)  # fmt: skip
def test_what_is_no_budget_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="budget"):
        Budget.of(given)


def test_the_shares_of_shards_are_no_more_than_the_whole() -> None:
    share = Budget(tokens=10, usd=1, per_s=60).share(3)
    assert (share.tokens, share.per_s) == (3, 60)
    assert share.limits["nano"] * 3 <= 1_000_000_000


def test_an_error_says_what_is_left_and_who_used_it() -> None:
    state = BudgetState(
        limits={"nano": 10_000_000_000},
        spent={"nano": 7_500_000_000},
        reserved={"nano": 2_000_000_000},
        users={"lead": {"nano": 500_000_000}, "critic": {"nano": 7_000_000_000}, "other": {"tokens": 5}},
    )
    assert state.left("nano") == 500_000_000
    assert state.left("tokens") is None
    error = BudgetExceeded("tree ses_1", "nano", refusal(state, "nano", 1_000_000_000))
    assert str(error) == (
        "the budget of tree ses_1 does not allow this call: 0.5 USD of 10 USD are left, and this call may need 1 USD; "
        "2 USD are reserved for calls that are not finished; used by critic 7 USD, lead 0.5 USD"
    )


def test_a_cost_in_words() -> None:
    cost = Cost(requests=1, input_tokens=20, output_tokens=3, nano_usd=1_500_000)
    assert describe(cost) == "1 request, 20 + 3 tokens, 0.0015 USD"
    assert describe(Cost(requests=1, output_tokens=3, estimated=3)).endswith(
        "0 + 3 tokens (3 of them estimated)"
    )


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (
            "When you are done, wrap your final answer in tags. Whoever gave you this task is given what stands there.",
            23,
        ),
        ("def claim(run: str, *, lease_s: float = 1.5) -> bool:\n    return held.get(run) is None", 32),
        (
            '{"type": "object", "properties": {"score": {"type": "integer", "minimum": 0}}, "required": ["score"]}',
            32,
        ),
        ("Übermäßige Geschwindigkeitsüberschreitungen werden künftig härter bestraft.", 31),
        ("今天的天气非常好，我们一起去公园散步吧。", 38),
        ("Сегодня прекрасная погода.", 19),
        ("😀🎉🚀", 9),
        ("aGVsbG8gd29ybGQhIFRoaXMgaXMgYmFzZTY0", 31),
        ("3.14159265358979 2026-11-23T16:20:08Z", 37),
        ("0f1e2d3c4b5a69788796a5b4c3d2e1f0", 32),
        ("xqzkv wplmt brrgh fjdks qwrtp", 18),
        ("RUN CLAIMED BY W1", 7),
        ("        x = 1\n\n\n        y = 2", 10),
    ],
)
def test_a_text_has_no_more_tokens_than_the_estimate(text: str, tokens: int) -> None:
    """The numbers are those of SmolLM2, whose 49,152 words are few: it takes digits and foreign letters in pieces."""
    assert tokens <= most_tokens(text) <= 3 * tokens
