"""Tells which leases are dead: those whose renewal counter stood still for so long on our own clock.

No wall clock is compared with another's, so a wrong or jumping clock kills nothing. A freshly started
observer has seen nothing yet and waits a whole lease before it judges. One that stood still itself (a machine
that slept, a server that did not answer) has not watched meanwhile: of the time between two looks only a part
of the lease counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.clock import Clock
from orchestrator.ledger import Lease


class LeaseWatch:
    """What one observer has seen of the leases so far."""

    def __init__(self, clock: Clock, *, lease_s: float) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._last_look = clock.monotonic()
        #: Each lease as it was last seen to move, and the seconds for which it was watched since.
        self._seen: dict[str, tuple[Lease, float]] = {}

    def dead(self, leases: Iterable[Lease]) -> list[Lease]:
        """Take note of every lease as it stands; those that have not moved for a whole lease time."""
        now = self._clock.monotonic()
        watched_s = min(now - self._last_look, self._lease_s / 3)
        self._last_look = now
        seen: dict[str, tuple[Lease, float]] = {}
        for lease in leases:
            before = self._seen.get(lease.run)
            moved = before is None or (before[0].claim, before[0].beat) != (lease.claim, lease.beat)
            seen[lease.run] = (lease, 0.0) if moved or before is None else (lease, before[1] + watched_s)
        self._seen = seen
        return [lease for lease, still_s in seen.values() if still_s >= self._lease_s]
