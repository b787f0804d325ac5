"""Tells which leases are dead: those whose renewal counter stood still for so long on our own clock.

No wall clock is compared with another's, so a wrong or jumping clock kills nothing. A freshly started
observer has seen nothing yet and waits a whole lease before it judges.
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
        self._seen: dict[str, tuple[Lease, float]] = {}

    def dead(self, leases: Iterable[Lease]) -> list[Lease]:
        """Take note of every lease as it stands; those that have not moved for a whole lease time."""
        now = self._clock.monotonic()
        seen: dict[str, tuple[Lease, float]] = {}
        for lease in leases:
            before = self._seen.get(lease.run)
            moved = before is None or (before[0].claim, before[0].beat) != (lease.claim, lease.beat)
            seen[lease.run] = (lease, now) if moved or before is None else before
        self._seen = seen
        return [lease for lease, since in seen.values() if now - since >= self._lease_s]
