"""Delayed redelivery: a message that cannot be carried out yet is parked, and put back into its stream when it is due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from orchestrator import machine
from orchestrator.agents.registry import AgentRecord, AgentRegistry
from orchestrator.crashpoints import failpoint
from orchestrator.envelope.message_types import SESSION_STARTING, TERMINAL_TYPES
from orchestrator.envelope.model import AgentMessage
from orchestrator.log import get_logger
from orchestrator.machine import Clock
from orchestrator.policy.retry import Backoff, RetryEnd, decide
from orchestrator.policy.routing import RoutingTable
from orchestrator.router.delayed.dependencies import FIRST_LOOK_MS, BlockedTask, Dependencies
from orchestrator.router.delayed.parked import DelayedMessage, DelayedMessages, Wait
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
FIRST_RETRY_LOOK_MS: Final = 100
#: Milliseconds between two looks whether an agent is registered.
AGENT_LOOK_MS: Final = 500


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
            pause_ms = min(RETRY_FOR_MS, max(FIRST_RETRY_LOOK_MS, waited_ms))
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


#: Seconds between two looks at what waits, at the most, while anything does, and while nothing does.
_LOOK_EVERY_S: Final = 0.25
_IDLE_LOOK_EVERY_S: Final = 1.0


class Redelivery:
    """Defers messages, and knows when to look at those that wait."""

    def __init__(
        self, parking: DelayedMessages, *, dependencies: Dependencies, agents: AgentRegistry, clock: Clock
    ) -> None:
        self._delayed = parking
        self._dependencies = dependencies
        self._agents = agents
        self._clock = clock
        #: When to look at what waits, on the monotonic clock.
        self.next_look = 0.0
        #: Whether any message waited when it was last looked; a moment old.
        self.something_waits = True

    def together(self) -> AbstractContextManager[None]:
        """Inside, all that is to wait goes to the server in one round trip."""
        return self._delayed.together()

    def block(self, received: ReceivedMessage, blocked: BlockedTask) -> bool:
        """Let a message wait for other tasks; False: another router has dealt with it."""
        now_ms = self._clock.now_ms()
        parked = self._delayed.park(
            received.entry,
            received.message,
            Wait(
                due_ms=now_ms + FIRST_LOOK_MS,
                since_ms=blocked.since_ms,
                tasks=blocked.tasks,
                until_ms=blocked.until_ms,
            ),
            attempt=received.attempt,
            now_ms=now_ms,
            rule="",
            reason=blocked.reason,
        )
        self._look_in(FIRST_LOOK_MS)
        return parked

    def wait(self, entry: Entry, rejection: Rejection, wait: Wait) -> bool:
        """Let a rejected entry wait; False: another router has dealt with it."""
        assert rejection.message is not None
        now_ms = self._clock.now_ms()
        parked = self._delayed.park(
            entry,
            rejection.message,
            wait,
            attempt=attempt_of(entry) + (wait.since_ms is None),
            now_ms=now_ms,
            rule=rejection.rule,
            reason=rejection.reason,
        )
        failpoint("router.parked")
        self._look_in(wait.due_ms - now_ms)
        if rejection.trusted:  # a flood of untrusted messages must not flood the log
            get_logger().info(
                "message-parked",
                stream=str(entry.stream),
                entry=entry.id,
                rule=rejection.rule,
                due_ms=wait.due_ms,
            )
        return parked

    def _look_in(self, wait_ms: int) -> None:
        """Look at waiting messages after ``wait_ms`` milliseconds at the latest."""
        self.something_waits = True
        self.next_look = min(self.next_look, machine.monotonic() + max(0, wait_ms) / 1000)

    def look_at_waiters(self, messages: Sequence[ReceivedMessage]) -> None:
        """If messages that were carried out report what a task waits for, look at it in the next round."""
        if self.something_waits and self._dependencies.hurry_waiters(messages):
            self.next_look = 0.0

    def release(self) -> int:
        """Put back messages that have waited long enough, and tasks whose dependencies changed; return how many."""
        now_ms = self._clock.now_ms()
        due, next_ms = self._delayed.due(now_ms)
        tasks = [parked for parked in due if parked.tasks]
        # The next look is set before this look: an end that is reported from now on brings it forward again.
        self._delayed.put_off({parked: now_ms + self._dependencies.look_again_ms(parked) for parked in tasks})
        changed = dict(zip((t.id for t in tasks), self._dependencies.changed(tasks), strict=True))
        later: dict[DelayedMessage, int] = {}
        ready: list[DelayedMessage] = []
        for parked in due:
            # What was parked in the future was parked by a wrong clock, and is checked again.
            in_time = parked.parked_ms <= now_ms < parked.until_ms
            if parked.agent and in_time and self._agents.get(parked.agent) is None:
                later[parked] = min(parked.until_ms, now_ms + AGENT_LOOK_MS)
            elif changed.get(parked.id, True):
                ready.append(parked)
        released = self._delayed.release(ready) if ready else 0
        self._delayed.put_off(later)
        self.something_waits = next_ms is not None or bool(due)
        # What is due and did not fit into this look is looked at after this round.
        more = next_ms is not None and next_ms <= now_ms
        pause_s = _LOOK_EVERY_S if self.something_waits else _IDLE_LOOK_EVERY_S
        self.next_look = 0.0 if more else machine.monotonic() + pause_s
        return released
