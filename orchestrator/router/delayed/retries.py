"""Attempts: how many a message has, how long each may take, and when the next one is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orchestrator import machine
from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope.message_types import SESSION_STARTING, TERMINAL_TYPES
from orchestrator.envelope.model import AgentMessage
from orchestrator.machine import Clock
from orchestrator.policy.retry import Backoff, RetryEnd, decide
from orchestrator.policy.routing import RoutingTable
from orchestrator.router.received import ReceivedMessage, Rejection, attempt_of, since_of
from orchestrator.router.validation.validator import reject
from orchestrator.streams import Entry

#: Rules about what may still be on its way.
PATIENT: Final = frozenset(
    {"session-unknown", "session-pending", "recipient-session", "conversation-party", "key-unknown"}
)
#: Rules about agents whose worker may be starting.
STARTING: Final = frozenset({"sender-unknown", "recipient-unknown"})
#: Of those, the one about what is known to be on its way: it is waited for until the attempt's timeout.
COMING: Final = "session-pending"
#: Milliseconds that an attempt waits for the others, and after which it first looks again.
RETRY_FOR_MS: Final = 10_000
FIRST_LOOK_MS: Final = 100
#: Milliseconds between two looks whether an agent is registered.
AGENT_LOOK_MS: Final = 500


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A message waits for its next attempt, or for what it names, and then its attempt goes on."""

    due_ms: int
    #: When the attempt began that goes on; None: the next attempt follows.
    since_ms: int | None = None
    #: The agent that is to be registered, if that is what it waits for; or empty.
    agent: str = ""
    #: Until when it waits for that agent.
    until_ms: int = 0


class Retries:
    """Applies the header's retry policy, else the table's."""

    def __init__(
        self,
        table: RoutingTable,
        *,
        clock: Clock,
        find_agent: Callable[[str], AgentRecord | None],
        registration_s: float = 20,
        jitter: Callable[[], float] = machine.random,
    ) -> None:
        self._table = table
        self._clock = clock
        self._find_agent = find_agent
        self._registration_ms = round(registration_s * 1000)
        self._jitter = jitter

    def policy(self, message: AgentMessage) -> tuple[int, Backoff, float]:
        """Attempts in all, backoff strategy, and seconds that an attempt may take."""
        row = self._table[message.body.type]
        header = message.header.retry_policy
        if header is None:
            return row.attempts, row.backoff, row.timeout_s
        return header.max_attempts, header.backoff_strategy, header.timeout_seconds

    def late(self, received: ReceivedMessage) -> Rejection | None:
        """A rejection if the last attempt's time had passed before any router got to it.

        What an agent of our own reports is in the ledger already and so was accepted when it was published.
        An attempt whose time has passed has failed; while there are more, this is the next one, made at once.
        """
        if received.type in TERMINAL_TYPES:
            return None
        if received.type not in SESSION_STARTING:
            sender = self._find_agent(received.sender)
            if sender is None or not sender.external:
                return None
        attempts, _, timeout_s = self.policy(received.message)
        waited_ms = self._clock.now_ms() - int(received.entry.id.partition("-")[0])
        if waited_ms <= timeout_s * 1000 or received.attempt < attempts:
            return None
        return reject(
            "timeout",
            f"it was not accepted within {timeout_s:g} s: it stood in its stream for {waited_ms / 1000:.1f} s; "
            "replay it, or start more routers",
            received.message,
        )

    def wait(self, entry: Entry, rejection: Rejection) -> Wait | RetryEnd:
        """Return how a refused entry waits, for what it names or for its next attempt; or why it is not tried again."""
        message = rejection.message
        if message is None:
            return RetryEnd.PERMANENT
        now_ms = self._clock.now_ms()
        since_ms = since_of(entry, now_ms)
        wait = self._within_attempt(message, rejection.rule, now_ms=now_ms, since_ms=since_ms)
        if wait is not None:
            return wait
        if rejection.rule in STARTING and 0 < self._registration_ms <= now_ms - since_ms:
            # A worker that was starting would have registered the agent by now.
            return RetryEnd.ATTEMPTS
        attempts, strategy, _ = self.policy(message)
        expiration = message.header.expiration
        due = decide(
            attempt=attempt_of(entry),
            max_attempts=attempts,
            strategy=strategy,
            retryable=rejection.retryable,
            now_ms=now_ms,
            expires_ms=None if expiration is None else expiration.instant_ms,
            jitter=self._jitter(),
        )
        return due if isinstance(due, RetryEnd) else Wait(due_ms=due)

    def _within_attempt(self, message: AgentMessage, rule: str, *, now_ms: int, since_ms: int) -> Wait | None:
        """Return when to look again within the same attempt; None if the attempt has failed.

        What a message names may be on its way: its launch in the hands of another router, its key being
        registered, a worker starting. An attempt waits for that for a while, and no longer than its timeout.
        """
        timeout_ms = round(self.policy(message)[2] * 1000)
        if rule in PATIENT:
            waited_ms = now_ms - since_ms
            if waited_ms >= (timeout_ms if rule == COMING else min(timeout_ms, RETRY_FOR_MS)):
                return None
            pause_ms = min(RETRY_FOR_MS, max(FIRST_LOOK_MS, waited_ms))
            return Wait(due_ms=now_ms + pause_ms, since_ms=since_ms)
        until_ms = since_ms + min(timeout_ms, self._registration_ms)
        if rule not in STARTING or now_ms >= until_ms:
            return None
        expiration, header = message.header.expiration, message.header
        unknown = header.sender if rule == "sender-unknown" else header.recipient
        return Wait(
            due_ms=min(until_ms, now_ms + AGENT_LOOK_MS),
            since_ms=since_ms,
            agent=unknown.agent_name,
            until_ms=until_ms if expiration is None else min(until_ms, expiration.instant_ms),
        )
