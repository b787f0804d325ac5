"""Retries after a failed attempt to deliver a message or to execute a run. Pure decisions."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

#: How the waits between attempts grow.
Backoff = Literal["exponential", "linear"]


#: Milliseconds before the second attempt, before jitter.
BASE_MS = 1000
#: How much longer each exponential wait is than the one before.
FACTOR = 2
#: The longest wait in milliseconds.
CAP_MS = 300_000


class RetryEnd(StrEnum):
    """The reason why there is no other attempt."""

    PERMANENT = "permanent"  #: trying again cannot help
    ATTEMPTS = "attempts"  #: all attempts are used up
    EXPIRATION = "expiration"  #: the message would be expired by then


def backoff_ms(attempt: int, strategy: Backoff, *, jitter: float) -> int:
    """Return the milliseconds between attempt number ``attempt`` (1: the first) and the next.

    Exponential: full jitter, ``jitter × min(CAP, BASE × FACTOR^(attempt-1))``, so that what failed together
    does not come back together. Linear: ``min(CAP, BASE × attempt)``, without jitter.
    ``jitter`` is a random number from 0 to 1.
    """
    longest = _longest_ms(attempt, strategy, base_ms=BASE_MS, cap_ms=CAP_MS)
    return longest if strategy == "linear" else round(jitter * longest)


def run_backoff_ms(failures: int, strategy: Backoff, *, base_ms: int, cap_ms: int, jitter: float) -> int:
    """Return the milliseconds from the end of a run's failed try until the next; ``failures`` counts that try.

    Between a half of ``min(cap, base × 2^(failures-1))``, or of ``min(cap, base × failures)`` where the strategy is
    linear, and the whole: what an agent calls gets a rest, and what failed together does not come back together.
    ``jitter`` is a random number from 0 to 1.
    """
    longest = _longest_ms(failures, strategy, base_ms=base_ms, cap_ms=cap_ms)
    return round(longest * (1 + jitter) / 2)


def _longest_ms(attempt: int, strategy: Backoff, *, base_ms: int, cap_ms: int) -> int:
    if strategy == "linear":
        return min(cap_ms, base_ms * attempt)
    # Beyond 2^20 the cap has long been reached; a huge exponent would only cost time.
    return min(cap_ms, base_ms * int(FACTOR ** min(attempt - 1, 20)))


def decide(
    *,
    attempt: int,
    max_attempts: int,
    strategy: Backoff,
    retryable: bool,
    now_ms: int,
    expires_ms: int | None,
    jitter: float,
) -> int | RetryEnd:
    """When a message is tried again after attempt number ``attempt`` failed, in ms since the epoch; or why it is not."""
    if not retryable:
        return RetryEnd.PERMANENT
    if attempt >= max_attempts:
        return RetryEnd.ATTEMPTS
    at_ms = now_ms + backoff_ms(attempt, strategy, jitter=jitter)
    return RetryEnd.EXPIRATION if expires_ms is not None and at_ms >= expires_ms else at_ms
