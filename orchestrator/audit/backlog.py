"""The backlog of the audit trail: what was published and is not in a database yet, and since when."""

from __future__ import annotations

from dataclasses import dataclass

import redis

from orchestrator.redisdb.server_clock import ServerClock
from orchestrator.streams import AUDIT_GROUP, DEAD, TRANSITIONS, RedisStreams, all_streams, ledger_streams


@dataclass(frozen=True, kw_only=True)
class TrailBacklog:
    """Entries that no writer has committed, by kind; a writer that holds an entry has not committed it."""

    messages: int
    #: Steps of the ledger.
    steps: int
    dead_letters: int
    #: Milliseconds since the oldest of them was published; 0: there are none.
    oldest_ms: int

    @property
    def entries(self) -> int:
        """All of them."""
        return self.messages + self.steps + self.dead_letters


def backlog(client: redis.Redis, shards: int) -> TrailBacklog:
    """Return how far the audit trail of a stack is behind. Redis is asked, and no database: that may be away."""
    kinds = (
        all_streams(shards),
        ledger_streams(TRANSITIONS, shards),
        ledger_streams(DEAD, shards),
    )
    rows = [RedisStreams(client).backlog(AUDIT_GROUP, kind) for kind in kinds]
    messages, steps, dead_letters = (sum(row.unread + row.pending for row in kind) for kind in rows)
    since = [
        ms
        for kind in rows
        for row in kind
        for ms in (row.unread_since_ms, row.pending_since_ms)
        if ms is not None
    ]
    return TrailBacklog(
        messages=messages,
        steps=steps,
        dead_letters=dead_letters,
        oldest_ms=max(0, ServerClock(client).now_ms() - min(since)) if since else 0,
    )
