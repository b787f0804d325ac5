"""Taking messages by priority, so that nothing starves.

Each round takes at most a share from every stream: ``SHARES`` of them, highest priority first.
While a higher priority has had nothing to give, the lower ones take a whole round's worth. Whatever the
flood above it, the *n*-th oldest message of a stream is taken at the latest in round ``ceil(n / share)``
from when it was appended, as :func:`rounds_until_taken` says; rounds that leave its stream out do not count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from orchestrator.streams.consumer import Consumer
from orchestrator.streams.values import PRIORITIES, Entry, Portion, StreamId

#: Entries that one round takes from one stream of a priority while higher ones are in full flood.
SHARES: Mapping[str, int] = {"critical": 64, "high": 32, "normal": 16, "low": 8}
#: Entries that one round takes from one stream while nothing above it waits.
FULL_SHARE = 128
#: Milliseconds that an idle reader waits for a message before it looks up.
BLOCK_MS = 1000


def rounds_until_taken(position: int, priority: str) -> int:
    """The most rounds until the ``position``-th oldest waiting message of a stream is taken (1: the next)."""
    return math.ceil(position / SHARES[priority])


class PriorityReader:
    """Reads some streams for one consumer of a group, in rounds."""

    def __init__(
        self, consumer: Consumer, sources: Sequence[StreamId], *, full_share: int = FULL_SHARE
    ) -> None:
        self._consumer = consumer
        self._by_priority = {
            priority: [s for s in sources if s.priority == priority]
            for priority in PRIORITIES
            if any(s.priority == priority for s in sources)
        }
        self._full_share = full_share
        self._flooded: set[str] = set()

    def next_round(
        self,
        *,
        block_ms: int = BLOCK_MS,
        without: Collection[StreamId] = (),
        also: Sequence[StreamId] = (),
    ) -> list[Entry]:
        """The next entries, highest priority first; waits up to ``block_ms`` when there are none.

        Nothing is taken from the streams ``without`` which the round is to be, unless these are all. After all others
        come the streams ``also``, as if their priority were the lowest.
        """
        if without and all(s in without for streams in self._by_priority.values() for s in streams):
            without = ()
        portions = []
        quiet_above = True
        for priority, streams in self._by_priority.items():
            share = self._full_share if quiet_above else SHARES[priority]
            portions.append(Portion([s for s in streams if s not in without], share))
            quiet_above = quiet_above and priority not in self._flooded
        portions.append(Portion(also, self._full_share if quiet_above else SHARES[PRIORITIES[-1]]))
        entries = self._consumer.read(portions, block_ms=block_ms)
        taken: dict[StreamId, int] = {}
        for entry in entries:
            if entry.stream not in also:
                taken[entry.stream] = taken.get(entry.stream, 0) + 1
        self._flooded = {s.priority for s, count in taken.items() if count >= SHARES[s.priority]}
        return entries
