"""Detection of dead processes, by their connections, so that others take over at once what they held.

The kernel closes the connections of a process that is killed. A process that was not connected at two looks counts as
dead. That can be wrong: the process may be stopped, or its connection may have broken in a moment in which it had no
time to make a new one. Then work is done twice, as after a lease that has run out, and marks and claims make it count once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from orchestrator import machine
from orchestrator.machine import Clock
from orchestrator.redisdb.holders import Connected

#: Seconds for which a process must have been missed.
MISSED_S: Final = 0.9
#: Seconds that the oldest connection of a server is old before anybody is missed: after its restart all come back.
SETTLED_S: Final = 5.0


def mark_in(name: str) -> str:
    """Return the mark of a process at the end of a consumer's name or of a claim; empty if it has none."""
    return name.partition("@")[2]


class LostConnections:
    """Observer of the connections of other processes."""

    def __init__(self, clock: Clock, *, missed_s: float = MISSED_S) -> None:
        self._clock = clock
        self._missed_s = missed_s
        self._missed_since: dict[str, float] = {}

    def lost(self, marks: Iterable[str], connected: Connected) -> set[str]:
        """Return those of ``marks`` whose processes are dead. Each look names all marks that matter.

        None is, where the observer does not see its own process either: that server or proxy does not tell.
        """
        if machine.own_mark() not in connected.holders or connected.oldest_s < SETTLED_S:
            self._missed_since = {}
            return set()
        now = self._clock.monotonic()
        missed = set(marks) - connected.holders - {""}
        self._missed_since = {mark: self._missed_since.get(mark, now) for mark in missed}
        return {mark for mark, since in self._missed_since.items() if now - since >= self._missed_s}
