"""When a message is tried again, and why not."""

from __future__ import annotations

import pytest

from orchestrator.policy.retry import CAP_MS, Backoff, RetryEnd, backoff_ms, decide, run_backoff_ms


@pytest.mark.parametrize(
    ("attempt", "strategy", "jitter", "expected"),
    [
        (1, "exponential", 1.0, 1000),  # the base
        (2, "exponential", 1.0, 2000),  # twice the base
        (4, "exponential", 0.5, 4000),  # full jitter: anything from nothing to the whole wait
        (4, "exponential", 0.0, 0),
        (100, "exponential", 1.0, CAP_MS),  # no overflow, no wait above the cap
        (1, "linear", 0.3, 1000),  # linear has no jitter
        (5, "linear", 0.3, 5000),
        (100_000, "linear", 0.3, CAP_MS),
    ],
)
def test_waits_grow_as_the_strategy_says(
    attempt: int, strategy: Backoff, jitter: float, expected: int
) -> None:
    """Milliseconds before the next attempt."""
    assert backoff_ms(attempt, strategy, jitter=jitter) == expected


@pytest.mark.parametrize(
    ("attempt", "retryable", "expires_ms", "expected"),
    [
        (1, True, None, 11_000),
        (2, True, 12_001, 12_000),
        (2, True, 12_000, RetryEnd.EXPIRATION),
        (3, True, None, RetryEnd.ATTEMPTS),
        (1, False, None, RetryEnd.PERMANENT),
    ],
)
def test_the_decision_says_when_or_why_not(
    attempt: int, retryable: bool, expires_ms: int | None, expected: int | RetryEnd
) -> None:
    """Three attempts in all, the first included; never past the expiration."""
    decision = decide(
        attempt=attempt,
        max_attempts=3,
        strategy="exponential",
        retryable=retryable,
        now_ms=10_000,
        expires_ms=expires_ms,
        jitter=1.0,
    )
    assert decision == expected


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_a_run_waits_between_half_and_whole_of_what_grows(jitter: float) -> None:
    """Never next to nothing, however the dice fall, and never more than the cap."""

    def waits(strategy: Backoff) -> list[int]:
        return [
            run_backoff_ms(n, strategy, base_ms=1000, cap_ms=5000, jitter=jitter) for n in (1, 2, 3, 4, 10**6)
        ]

    assert waits("exponential") == [round(s * (1 + jitter) / 2) for s in (1000, 2000, 4000, 5000, 5000)]
    assert waits("linear") == [round(s * (1 + jitter) / 2) for s in (1000, 2000, 3000, 4000, 5000)]
