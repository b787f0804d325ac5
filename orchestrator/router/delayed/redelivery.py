"""Delayed redelivery: what cannot be carried out yet is parked, and put back into its stream when its time has come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from orchestrator.agents.registry import AgentRegistry
from orchestrator.clock import Clock
from orchestrator.crashpoints import reach
from orchestrator.log import get_logger
from orchestrator.router.delayed.dependencies import FIRST_LOOK_MS, Dependencies, Held
from orchestrator.router.delayed.parked import Parked, Parking
from orchestrator.router.delayed.retries import AGENT_LOOK_MS, Patience
from orchestrator.router.received import Letter, Rejection, attempt_of
from orchestrator.streams import Entry

#: Seconds between two looks at what waits, at the most, while anything does, and while nothing does.
_LOOK_EVERY_S: Final = 0.25
_IDLE_LOOK_EVERY_S: Final = 1.0


class Redelivery:
    """Defers messages, and knows when to look at those that wait."""

    def __init__(
        self, parking: Parking, *, dependencies: Dependencies, agents: AgentRegistry, clock: Clock
    ) -> None:
        self._parking = parking
        self._dependencies = dependencies
        self._agents = agents
        self._clock = clock
        #: When to look at what waits, on the monotonic clock.
        self.next_look = 0.0
        #: Whether any message waited when it was last looked; a moment old.
        self.something_waits = True

    # --- into the parking --------------------------------------------------------------------

    def retry(self, entry: Entry, rejection: Rejection, *, due_ms: int) -> bool:
        """Let an entry wait for its next attempt; False: another router has dealt with it."""
        return self._park(entry, rejection, due_ms=due_ms, attempt=attempt_of(entry) + 1)

    def extend(self, entry: Entry, rejection: Rejection, patience: Patience) -> bool:
        """Let an entry's attempt go on after a wait; False: another router has dealt with it."""
        return self._park(
            entry, rejection, due_ms=patience.due_ms, attempt=attempt_of(entry), patience=patience
        )

    def hold(self, letter: Letter, held: Held) -> bool:
        """Let a letter wait for other tasks; False: another router has dealt with it."""
        now_ms = self._clock.now_ms()
        parked = self._parking.park(
            letter.entry,
            letter.message,
            due_ms=now_ms + FIRST_LOOK_MS,
            attempt=letter.attempt,
            now_ms=now_ms,
            since_ms=held.since_ms,
            rule="",
            reason=held.reason,
            tasks=held.tasks,
            until_ms=held.until_ms,
        )
        self.something_waits = True
        self.next_look = min(self.next_look, time.monotonic() + FIRST_LOOK_MS / 1000)
        return parked

    def _park(
        self,
        entry: Entry,
        rejection: Rejection,
        *,
        due_ms: int,
        attempt: int,
        patience: Patience | None = None,
    ) -> bool:
        assert rejection.message is not None
        now_ms = self._clock.now_ms()
        parked = self._parking.park(
            entry,
            rejection.message,
            due_ms=due_ms,
            attempt=attempt,
            now_ms=now_ms,
            since_ms=None if patience is None else patience.since_ms,
            rule=rejection.rule,
            reason=rejection.reason,
            agent="" if patience is None else patience.agent,
            until_ms=0 if patience is None else patience.until_ms,
        )
        self.something_waits = True
        reach("router.parked")
        self.next_look = min(self.next_look, time.monotonic() + max(0, due_ms - now_ms) / 1000)
        get_logger().info(
            "message-parked", stream=str(entry.stream), entry=entry.id, rule=rejection.rule, due_ms=due_ms
        )
        return parked

    # --- out of it ---------------------------------------------------------------------------

    def hear(self, letters: Sequence[Letter]) -> None:
        """If letters that were carried out report what a task waits for, look at it in the next round."""
        if self.something_waits and self._dependencies.told(letters):
            self.next_look = 0.0

    def release(self) -> int:
        """Put back what has waited long enough, and what something has happened for; how many that were."""
        released = 0
        now_ms = self._clock.now_ms()
        due, next_ms = self._parking.due(now_ms)
        tasks = [parked for parked in due if parked.tasks]
        # The next look is set before this one: an end that is reported from now on brings it forward again.
        self._parking.put_off({parked: now_ms + self._dependencies.look_again_ms(parked) for parked in tasks})
        stirred = dict(zip((t.id for t in tasks), self._dependencies.stirred(tasks), strict=True))
        later: dict[Parked, int] = {}
        for parked in due:
            # What was parked in the future was parked by a wrong clock, and is judged anew.
            in_time = parked.parked_ms <= now_ms < parked.until_ms
            if parked.agent and in_time and self._agents.get(parked.agent) is None:
                later[parked] = min(parked.until_ms, now_ms + AGENT_LOOK_MS)
            elif stirred.get(parked.id, True):
                released += self._parking.release(parked)
        self._parking.put_off(later)
        self.something_waits = next_ms is not None or bool(due)
        # What there is more of than one look takes in goes on after this round.
        more = next_ms is not None and next_ms <= now_ms
        pause_s = _LOOK_EVERY_S if self.something_waits else _IDLE_LOOK_EVERY_S
        self.next_look = 0.0 if more else time.monotonic() + pause_s
        return released
