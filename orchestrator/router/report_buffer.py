"""Reports that nobody waits for, buffered until there are many of them or it is time.

The ledger has the effect of a report in the step that publishes it, and its parent is told there. What is left for the
router, to judge the envelope and mark it, it does for many at once, and not while what follows from the report needs the cores.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final

from orchestrator.streams import Entry, StreamId
from orchestrator.streams.priority import SHARES

#: So many are not buffered for longer.
MANY: Final = 64
#: Seconds that a report is buffered for at the most.
REPORT_BUFFER_S: Final = 0.1
#: Seconds for which streams in which such reports come are not looked into; others write there, too, and are waited for.
BLIND_S: Final = 0.02


class ReportBuffer:
    """What one router has buffered; it holds these entries like any that it has read."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._until = self._blind_until = 0.0
        self._blind: set[StreamId] = set()

    def put(self, entries: Sequence[Entry]) -> list[Entry]:
        """Put aside what nobody waits for; the others of ``entries``, in their order."""
        applied = [entry for entry in entries if entry.already_applied]
        if not applied:
            return list(entries)
        now = time.monotonic()
        if not self._entries:
            self._until = now + REPORT_BUFFER_S
        self._entries += applied
        self._blind_until = now + BLIND_S
        given = Counter(entry.stream for entry in entries)
        # What is critical is looked for at all times, and where a whole share came from there is more.
        self._blind = {
            stream
            for stream in {entry.stream for entry in applied}
            if stream.priority != "critical" and given[stream] < SHARES[stream.priority]
        }
        return [entry for entry in entries if not entry.already_applied]

    def due(self) -> Sequence[Entry]:
        """What is to be routed now: everything, once there are many or the time of the first is up."""
        many = len(self._entries) >= MANY
        return self._entries if many or time.monotonic() >= self._until else ()

    def all(self) -> Sequence[Entry]:
        """Everything that is buffered."""
        return self._entries

    def clear(self) -> None:
        """All of it was routed."""
        self._entries = []

    def retry_for_ms(self, block_ms: int) -> int:
        """How long to wait for news, where it would be ``block_ms`` if nothing were buffered; 0: not at all."""
        if not self._entries:
            return block_ms
        now = time.monotonic()
        due = min(self._until, self._blind_until) if now < self._blind_until else self._until
        return min(block_ms, max(0, math.ceil((due - now) * 1000)))

    @property
    def streams(self) -> Collection[StreamId]:
        """The streams that the next round leaves out."""
        return self._blind if self._entries and time.monotonic() < self._blind_until else ()
