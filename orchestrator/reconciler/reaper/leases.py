"""Tells which leases are dead: those whose renewal counter stood still for so long on our own clock.

No wall clock is compared with another's, so a wrong or jumping clock kills nothing. A freshly started
observer has seen nothing yet and waits a whole lease before it judges. One that stood still itself (a machine
that slept, a server that did not answer) has not watched meanwhile: of the time between two looks only a part
of the lease counts.

A holder that was killed need not be waited for so long: its connection is gone at once. One that was seen connected,
and is not at two looks in a row, while its counter stands still, is dead. A holder whose connection only broke makes a
new one within a second; one that is stopped, or whose host has no power, keeps its connection, and the lease decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from orchestrator.clock import Clock
from orchestrator.ledger import Lease
from orchestrator.redisdb.holders import Connected

#: Seconds for which the connection of a holder has to be missed.
GONE_S: Final = 1.5


@dataclass(frozen=True)
class _Watched:
    lease: Lease
    #: Seconds for which its counter was watched to stand still.
    still_s: float = 0.0
    #: Seconds for which the connection of its holder was missed meanwhile; None: it was there, or never seen.
    missed_s: float | None = None


class LeaseWatch:
    """What one observer has seen of the leases so far."""

    def __init__(self, clock: Clock, *, lease_s: float) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._last_look = clock.monotonic()
        #: Since when connections are watched; those of a server that was started since say nothing.
        self._since = self._last_look
        self._seen: dict[str, _Watched] = {}
        self._known: frozenset[str] = frozenset()

    def dead(self, leases: Iterable[Lease], connected: Connected = Connected()) -> list[Lease]:  # noqa: B008  (frozen)
        """Take note of every lease as it stands; those whose holders are dead."""
        now = self._clock.monotonic()
        watched_s = min(now - self._last_look, self._lease_s / 3)
        self._last_look = now
        # All connections are new: the server was restarted, and holders are still coming back. Ages are whole seconds.
        if connected.oldest_s + 1 < now - self._since:
            self._known, self._since = frozenset(), now - connected.oldest_s
        self._seen = {lease.run: self._look(lease, connected, watched_s) for lease in leases}
        marks = {_mark(watched.lease) for watched in self._seen.values()}
        self._known = (self._known & marks) | connected.holders
        return [
            watched.lease
            for watched in self._seen.values()
            if watched.still_s >= self._lease_s or (watched.missed_s or 0.0) >= GONE_S
        ]

    def _look(self, lease: Lease, connected: Connected, watched_s: float) -> _Watched:
        before = self._seen.get(lease.run)
        mark = _mark(lease)
        missed = mark in self._known and mark not in connected.holders
        if before is None or (before.lease.claim, before.lease.lease_version) != (
            lease.claim,
            lease.lease_version,
        ):
            return _Watched(lease, missed_s=0.0 if missed else None)
        missed_s = None if not missed else 0.0 if before.missed_s is None else before.missed_s + watched_s
        return _Watched(lease, before.still_s + watched_s, missed_s)


def _mark(lease: Lease) -> str:
    return lease.claim.partition("@")[2]
