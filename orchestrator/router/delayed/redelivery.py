"""Delayed redelivery: a message that cannot be carried out yet is parked, and put back into its stream when it is due."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final

from orchestrator import machine
from orchestrator.agents.registry import AgentRegistry
from orchestrator.crashpoints import failpoint
from orchestrator.log import get_logger
from orchestrator.machine import Clock
from orchestrator.router.delayed.dependencies import FIRST_LOOK_MS, BlockedTask, Dependencies
from orchestrator.router.delayed.parked import DelayedMessage, DelayedMessages
from orchestrator.router.delayed.retries import AGENT_LOOK_MS, Wait
from orchestrator.router.received import ReceivedMessage, Rejection, attempt_of
from orchestrator.streams import Entry

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
            due_ms=now_ms + FIRST_LOOK_MS,
            attempt=received.attempt,
            now_ms=now_ms,
            since_ms=blocked.since_ms,
            rule="",
            reason=blocked.reason,
            tasks=blocked.tasks,
            until_ms=blocked.until_ms,
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
            due_ms=wait.due_ms,
            attempt=attempt_of(entry) + (wait.since_ms is None),
            now_ms=now_ms,
            since_ms=wait.since_ms,
            rule=rejection.rule,
            reason=rejection.reason,
            agent=wait.agent,
            until_ms=wait.until_ms,
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
            # What was parked in the future was parked by a wrong clock, and is judged again.
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
