"""Attempts: how many a message has, how long each may take, and when the next one is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from orchestrator.clock import Clock
from orchestrator.envelope.model import AgentMessage
from orchestrator.policy.retry import RetryDecision, RetryEnd, decide
from orchestrator.policy.routing import LAUNCHES, Backoff, RoutingTable
from orchestrator.registry import AgentRecord
from orchestrator.router.intake import reject
from orchestrator.router.letter import Letter, Rejection, attempt_of
from orchestrator.streams import Entry

#: Types that nothing ever refuses for being late: they end what others wait for.
NEVER_LATE: Final = frozenset({"task-completion", "error", "reply"})


class Retries:
    """Applies the header's retry policy, else the table's."""

    def __init__(
        self,
        table: RoutingTable,
        *,
        clock: Clock,
        find_agent: Callable[[str], AgentRecord | None],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._table = table
        self._clock = clock
        self._find_agent = find_agent
        self._jitter = jitter

    def policy(self, message: AgentMessage) -> tuple[int, Backoff, float]:
        """Attempts in all, backoff strategy, and seconds that an attempt may take."""
        row = self._table[message.body.type]
        header = message.header.retry_policy
        if header is None:
            return row.attempts, row.backoff, row.timeout_s
        return header.max_attempts, header.backoff_strategy, header.timeout_seconds

    def late(self, letter: Letter) -> Rejection | None:
        """A rejection if the last attempt's time was over before any router got to it.

        What an agent of our own reports is in the ledger already and so was accepted when it was published.
        An attempt whose time is over has failed; while there are more, this is the next one, made at once.
        """
        if letter.type in NEVER_LATE:
            return None
        if letter.type not in LAUNCHES:
            sender = self._find_agent(letter.sender)
            if sender is None or not sender.foreign:
                return None
        attempts, _, timeout_s = self.policy(letter.message)
        waited_ms = self._clock.now_ms() - int(letter.entry.id.partition("-")[0])
        if waited_ms <= timeout_s * 1000 or letter.attempt < attempts:
            return None
        return reject(
            "timeout",
            f"it was not accepted within {timeout_s:g} s: it stood in its stream for {waited_ms / 1000:.1f} s; "
            "replay it, or start more routers",
            letter.message,
        )

    def decide(self, entry: Entry, rejection: Rejection) -> RetryDecision:
        """Whether and when the entry is tried again."""
        message = rejection.message
        if message is None:
            return RetryDecision(at_ms=None, end=RetryEnd.PERMANENT)
        attempts, strategy, _ = self.policy(message)
        expiration = message.header.expiration
        return decide(
            attempt=attempt_of(entry),
            max_attempts=attempts,
            strategy=strategy,
            retryable=rejection.retryable,
            now_ms=self._clock.now_ms(),
            expires_ms=None if expiration is None else expiration.instant_ms,
            jitter=self._jitter(),
        )
