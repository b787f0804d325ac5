"""Taking messages by priority, so that nothing starves.

Each round takes at most a share from every stream: ``SHARES`` of them, highest priority first.
While higher priorities are empty, the lower ones take a full share. Whatever the
flood above it, the *n*-th oldest message of a stream is taken at the latest in round ``ceil(n / share)``
from when it was appended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.streams.consumer import Consumer
from orchestrator.streams.values import PRIORITIES, Entry, Portion, StreamId

#: Entries that one round takes from one stream of a priority while higher ones are in full flood.
SHARES: Mapping[str, int] = {"critical": 64, "high": 32, "normal": 16, "low": 8}
#: Entries that one round takes from one stream while nothing above it waits.
FULL_SHARE = 128
#: Milliseconds that an idle reader waits for a message before it looks up.
BLOCK_MS = 1000


class PriorityReader:
    """Reads some streams for one consumer of a group, in rounds."""

    def __init__(self, consumer: Consumer, sources: Sequence[StreamId]) -> None:
        self._consumer = consumer
        self._by_priority = {
            priority: [s for s in sources if s.priority == priority]
            for priority in PRIORITIES
            if any(s.priority == priority for s in sources)
        }
        self._flooded: set[str] = set()

    @property
    def lowest_share(self) -> int:
        """Entries that the next round takes from a stream behind all others."""
        return SHARES[PRIORITIES[-1]] if self._flooded else FULL_SHARE

    def next_round(self, *, block_ms: int) -> list[Entry]:
        """Return the next entries, highest priority first; wait up to ``block_ms`` if there are none."""
        portions = []
        quiet_above = True
        for priority, streams in self._by_priority.items():
            portions.append(Portion(streams, FULL_SHARE if quiet_above else SHARES[priority]))
            quiet_above = quiet_above and priority not in self._flooded
        entries = self._consumer.read(portions, block_ms=block_ms)
        taken: dict[StreamId, int] = {}
        for entry in entries:
            taken[entry.stream] = taken.get(entry.stream, 0) + 1
        self._flooded = {s.priority for s, count in taken.items() if count >= SHARES[s.priority]}
        return entries
