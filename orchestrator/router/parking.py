"""Messages that wait: for their next attempt, or for other tasks. Durable in Redis; nobody sleeps for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Scripts
from orchestrator.streams import ROUTER_GROUP, Entry, StreamId, stream_key

#: Messages looked at in one round.
BATCH: Final = 100


@dataclass(frozen=True, kw_only=True)
class Parked:
    """One message that waits."""

    id: str
    stream: StreamId
    message_id: str
    #: Which attempt comes next.
    attempt: int
    #: What it waits for: `retry`, or `tasks`.
    why: str
    rule: str
    reason: str
    parked_ms: int
    #: When to look at it again.
    due_ms: int
    data: bytes


class Parking:
    """The messages of a stack that wait."""

    def __init__(self, scripts: Scripts, *, shards: Iterable[int], mark_ms: int) -> None:
        self._scripts = scripts
        self._redis = scripts.client
        self._shards = list(shards)
        self._mark_ms = mark_ms

    def park(
        self,
        entry: Entry,
        *,
        message_id: str,
        due_ms: int,
        attempt: int,
        now_ms: int,
        since_ms: int | None = None,
        why: str = "retry",
        rule: str = "",
        reason: str = "",
    ) -> bool:
        """Let an entry wait until ``due_ms``; False: another router has dealt with it.

        ``since_ms`` is when the attempt began that goes on after the wait; None: the next one begins then.
        """
        shard = entry.stream.shard
        parked_id = f"{entry.stream.type}:{entry.stream.priority}:{entry.id}"
        answer = self._scripts.run(
            "route_park",
            [stream_key(entry.stream), keys.parked(shard), keys.parked_message(shard, parked_id)],
            [
                ROUTER_GROUP,
                entry.id,
                parked_id,
                due_ms,
                "envelope",
                entry.data or b"",
                "message-id",
                message_id,
                "attempt",
                attempt,
                "why",
                why,
                "rule",
                rule,
                "reason",
                reason,
                "since",
                "" if since_ms is None else since_ms,
                "parked",
                now_ms,
            ],
        )
        return bool(answer)

    def due(self, now_ms: int) -> tuple[list[Parked], int | None]:
        """What is to be looked at now, and when something is next; None: nothing else waits."""
        found: list[Parked] = []
        later: list[int] = []
        for shard in self._shards:
            rows: Any = self._redis.zrange(keys.parked(shard), 0, BATCH, withscores=True)
            ready = [row for row in rows if row[1] <= now_ms][:BATCH]
            later += [int(row[1]) for row in rows[len(ready) : len(ready) + 1]]
            if ready:
                found += self._read(shard, ready)
        return found, min(later, default=None)

    def all(self, *, limit: int = 1000) -> list[Parked]:
        """Everything that waits, the most urgent first."""
        found = []
        for shard in self._shards:
            rows: Any = self._redis.zrange(keys.parked(shard), 0, limit - 1, withscores=True)
            found += self._read(shard, rows)
        return found

    def _read(self, shard: int, rows: list[tuple[bytes, float]]) -> list[Parked]:
        pipeline = self._redis.pipeline(transaction=False)
        for raw_id, _ in rows:
            pipeline.hgetall(keys.parked_message(shard, raw_id.decode()))
        found = []
        for (raw_id, due_ms), facts in zip(rows, pipeline.execute() if rows else [], strict=True):
            parked_id = raw_id.decode()
            if not facts:  # left between two looks
                self._redis.zrem(keys.parked(shard), parked_id)
                continue
            found.append(_parked(shard, parked_id, int(due_ms), facts))
        return found

    def release(self, parked: Parked) -> bool:
        """Put a message back into its stream; False: another router did."""
        shard = parked.stream.shard
        answer = self._scripts.run(
            "route_unpark",
            [
                keys.parked(shard),
                keys.parked_message(shard, parked.id),
                stream_key(parked.stream),
                keys.totals(shard),
                keys.seen(shard, parked.message_id),
            ],
            [parked.id, self._mark_ms],
        )
        return bool(answer)


def _parked(shard: int, parked_id: str, due_ms: int, facts: dict[bytes, bytes]) -> Parked:
    def text(name: bytes) -> str:
        return facts.get(name, b"").decode("utf-8", "replace")

    message_type, priority, _ = parked_id.split(":")
    return Parked(
        id=parked_id,
        stream=StreamId(shard, message_type, priority),
        message_id=text(b"message-id"),
        attempt=int(text(b"attempt") or 1),
        why=text(b"why"),
        rule=text(b"rule"),
        reason=text(b"reason"),
        parked_ms=int(text(b"parked") or 0),
        due_ms=due_ms,
        data=facts.get(b"envelope", b""),
    )
