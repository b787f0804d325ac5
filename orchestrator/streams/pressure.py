"""Backpressure: a publisher of new work is slowed, then refused, while the streams are longer than they may be.

Only new work asks. Commits, errors, replies and retries are always taken.
"""

from __future__ import annotations

import threading
from typing import Final

import redis

from orchestrator import machine
from orchestrator.errors import StreamFull
from orchestrator.streams.redis_streams import stream_key
from orchestrator.streams.values import StreamId

#: The part of the limit from which on publishers are slowed.
SOFT: Final = 0.8
#: Seconds that a publisher is slowed at most, just below the limit.
MAX_DELAY_S: Final = 0.25
#: Seconds to wait for room before new work is refused.
RETRY_FOR_S: Final = 5.0
#: Seconds that a length is taken from memory at most, while the stream is far from its limit.
MEMORY_S: Final = 1.0
#: Entries that a stream may have grown by in each of these seconds; no routers keep up with more.
GROWTH: Final = 20_000


class Backpressure:
    """Asks for room in the streams of one server. Safe to share between threads."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        limit: int,
        retry_for_s: float = RETRY_FOR_S,
        max_delay_s: float = MAX_DELAY_S,
        memory_s: float = MEMORY_S,
    ) -> None:
        self._redis = client
        self._limit = limit
        self._retry_for_s = retry_for_s
        self._max_delay_s = max_delay_s
        self._memory_s = memory_s
        self._seen: dict[StreamId, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def admit(self, stream: StreamId) -> int:
        """Return the limit when there is room for new work; slows the caller when there is little left.

        Raises:
            StreamFull: there was no room for ``retry_for_s`` seconds.
        """
        length = self._length(stream)
        soft = self._limit * SOFT
        if length <= soft:
            return self._limit
        if length < self._limit:
            machine.sleep(self._max_delay_s * (length - soft) / max(1.0, self._limit - soft))
            return self._limit
        deadline = machine.monotonic() + self._retry_for_s
        while length >= self._limit:
            remaining = deadline - machine.monotonic()
            if remaining <= 0:
                raise StreamFull(str(stream), length, self._limit)
            machine.sleep(min(0.1, remaining))
            length = self._length(stream)
        return self._limit

    def _length(self, stream: StreamId) -> int:
        now = machine.monotonic()
        with self._lock:
            known = self._seen.get(stream)
        if known is not None:
            seen_at, length = known
            if now - seen_at < self._memory_s and length + GROWTH * (now - seen_at) < self._limit * SOFT:
                return length
        length = int(self._redis.xlen(stream_key(stream)))
        with self._lock:
            self._seen[stream] = (now, length)
        return length
