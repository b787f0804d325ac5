"""Which consumers of a group are gone with the connection of their process, so that what they held need not wait.

The kernel closes the connections of a process that is killed. A consumer whose process was not connected at two looks
is taken for dead. That can be wrong: the process may be stopped, or its connection may have broken in a moment in which
it had no time to make a new one. Then an entry is handled twice, as after a lease that has run out, and marks and claims
see to it that it counts once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from orchestrator.clock import Clock
from orchestrator.redisdb.holders import Connected, own_mark

#: Seconds for which a process must have been missed.
MISSED_S: Final = 0.9
#: Seconds that the oldest connection of a server is old before anybody is missed: after its restart all come back.
SETTLED_S: Final = 5.0


class LostConnections:
    """What one consumer has seen of the connections of the others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._missed_since: dict[str, float] = {}

    def lost(self, consumers: Iterable[str], connected: Connected) -> list[str]:
        """Those of ``consumers`` that are dead.

        Nobody is, where the own process is not seen either: that server or proxy does not tell.
        """
        now = self._clock.monotonic()
        if own_mark() not in connected.holders or connected.oldest_s < SETTLED_S:
            self._missed_since = {}
            return []
        marks = {name: mark for name in consumers if (mark := name.rpartition("@")[2]) != name}
        missed = set(marks.values()) - connected.holders
        self._missed_since = {mark: self._missed_since.get(mark, now) for mark in missed}
        return [
            name
            for name, mark in marks.items()
            if mark in missed and now - self._missed_since[mark] >= MISSED_S
        ]
