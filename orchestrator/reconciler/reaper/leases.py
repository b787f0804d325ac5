"""Tells which leases are dead: those whose renewal counter stood still for so long on our own clock.

No wall clock is compared with another's, so a wrong or jumping clock kills nothing. A freshly started
observer has seen nothing yet and watches before it judges. An observer that stood still itself (a machine
that slept, a server that did not answer) has not watched meanwhile: of the time between two looks only a part
of the lease counts.

A holder that was killed need not be waited for so long: its connection is gone at once, and its counter stands still.
A holder that this observer never saw connected may be one that the server does not show. It is given half a lease, in
which a living holder renews. A holder that is stopped, or whose host has no power, keeps its connection, and the lease
decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from orchestrator.ledger import Lease
from orchestrator.machine import Clock
from orchestrator.redisdb.holders import Connected
from orchestrator.streams.lost_connections import SETTLED_S, LostConnections, mark_in

#: Seconds for which the connection of a holder has to be missed, and its counter to stand still.
GONE_S: Final = 1.5


class LeaseWatch:
    """Observer of the leases so far."""

    def __init__(self, clock: Clock, *, lease_s: float) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._connections = LostConnections(clock, missed_s=GONE_S)
        self._last_look = clock.monotonic()
        #: Each lease by its run, and the seconds for which its counter was watched to stand still.
        self._seen: dict[str, tuple[Lease, float]] = {}
        #: The marks of holders that were seen connected.
        self._known: frozenset[str] = frozenset()

    def dead(self, leases: Iterable[Lease], connected: Connected = Connected()) -> list[Lease]:  # noqa: B008  (frozen)
        """Take note of every lease as it stands; those whose holders are dead."""
        now = self._clock.monotonic()
        watched_s = min(now - self._last_look, self._lease_s / 3)
        self._last_look = now
        before, self._seen = self._seen, {}
        for lease in leases:
            seen, still_s = before.get(lease.run, (None, 0.0))
            self._seen[lease.run] = lease, still_s + watched_s if seen == lease else 0.0
        marks = {mark_in(lease.claim) for lease, _ in self._seen.values()}
        lost = self._connections.lost(marks, connected)
        # After a restart of the server all connections are new, and holders are still coming back.
        kept = self._known & marks if connected.oldest_s >= SETTLED_S else frozenset()
        self._known = kept | connected.holders
        return [
            lease
            for lease, still_s in self._seen.values()
            if still_s >= self._patience_s(mark_in(lease.claim), lost)
        ]

    def _patience_s(self, mark: str, lost: set[str]) -> float:
        """Return the seconds for which the counter of a holder may stand still."""
        if mark not in lost:
            return self._lease_s
        return GONE_S if mark in self._known else self._lease_s / 2
