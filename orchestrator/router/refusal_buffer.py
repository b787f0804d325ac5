"""Refused entries without a trusted sender, given up when the router has time: a flood of them holds up nobody.

Judging such an entry costs a tenth of a millisecond, making it a dead letter more than that. So honest messages go
first, and refused entries follow, many in one round trip. Until then the router holds them like any entry that it has
read: if it dies, another router takes them over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from orchestrator.router.received import Rejection
from orchestrator.streams import Entry

#: How many entries, and how many octets of them, are held at most.
MOST: Final = 10_000
MOST_BYTES: Final = 32 * 1024 * 1024
#: Entries that are given up in one round trip.
AT_ONCE: Final = 256

Refusal = tuple[Entry, Rejection]


class RefusalBuffer:
    """The refused entries that one router still has to give up, the oldest first."""

    def __init__(self, *, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._refused: deque[Refusal] = deque()
        self._bytes = 0
        self._most = most
        self._most_bytes = most_bytes

    def __len__(self) -> int:
        return len(self._refused)

    @property
    def full(self) -> bool:
        """True if some entries must be given up before more are read."""
        return len(self._refused) >= self._most or self._bytes >= self._most_bytes

    def add(self, entry: Entry, rejection: Rejection) -> None:
        """Hold an entry that was refused."""
        self._refused.append((entry, rejection))
        self._bytes += len(entry.data or b"")

    def first(self) -> Sequence[Refusal]:
        """The entries to give up next."""
        return list(islice(self._refused, AT_ONCE))

    def drop(self, number: int) -> None:
        """The first ``number`` entries were given up."""
        for _ in range(number):
            entry, _rejection = self._refused.popleft()
            self._bytes -= len(entry.data or b"")
