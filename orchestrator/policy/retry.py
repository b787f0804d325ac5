"""What to do after an attempt to deliver a message failed: a pure decision, carried out by the router."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.policy.routing import Backoff

#: Milliseconds before the second attempt, before jitter.
BASE_MS = 1000
#: How much longer each exponential wait is than the one before.
FACTOR = 2
#: The longest wait in milliseconds.
CAP_MS = 300_000


class RetryEnd(StrEnum):
    """Why there is no further attempt."""

    PERMANENT = "permanent"  #: trying again cannot help
    ATTEMPTS = "attempts"  #: all attempts are used up
    EXPIRATION = "expiration"  #: the message would be expired by then


@dataclass(frozen=True, kw_only=True)
class RetryDecision:
    """Either when to try again, or why not."""

    #: When the next attempt is due, in milliseconds since the epoch; None: there is none.
    at_ms: int | None
    end: RetryEnd | None


def backoff_ms(attempt: int, strategy: Backoff, *, jitter: float) -> int:
    """Milliseconds between attempt number ``attempt`` (1: the first) and the next.

    Exponential: full jitter, ``jitter × min(CAP, BASE × FACTOR^(attempt-1))``, so that what failed together
    does not come back together. Linear: ``min(CAP, BASE × attempt)``, without jitter.
    ``jitter`` is a random number from 0 to 1.
    """
    if strategy == "linear":
        return min(CAP_MS, BASE_MS * attempt)
    # Beyond 2^20 the cap has long been reached; a huge exponent would only cost time.
    longest = min(CAP_MS, BASE_MS * int(FACTOR ** min(attempt - 1, 20)))
    return round(jitter * longest)


def decide(
    *,
    attempt: int,
    max_attempts: int,
    strategy: Backoff,
    retryable: bool,
    now_ms: int,
    expires_ms: int | None,
    jitter: float,
) -> RetryDecision:
    """Whether and when a message is tried again after attempt number ``attempt`` failed."""
    if not retryable:
        return RetryDecision(at_ms=None, end=RetryEnd.PERMANENT)
    if attempt >= max_attempts:
        return RetryDecision(at_ms=None, end=RetryEnd.ATTEMPTS)
    at_ms = now_ms + backoff_ms(attempt, strategy, jitter=jitter)
    if expires_ms is not None and at_ms >= expires_ms:
        return RetryDecision(at_ms=None, end=RetryEnd.EXPIRATION)
    return RetryDecision(at_ms=at_ms, end=None)
