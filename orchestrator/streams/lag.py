"""How far a consumer group is behind the ends of its streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import redis

from orchestrator.streams.redis_streams import stream_key
from orchestrator.streams.values import StreamId


class Lag(NamedTuple):
    """How far a group is behind the end of a stream."""

    #: Entries that nobody in the group has had, and those that somebody has had and not acknowledged.
    unread: int
    pending: int
    #: When the oldest of them was appended, in ms since the epoch; None: there are none.
    oldest_ms: int | None


def lags(client: redis.Redis, group: str, streams: Sequence[StreamId]) -> list[Lag]:
    """How far a group is behind in each stream. Without the group everything in the stream is unread."""
    names = [stream_key(stream) for stream in streams]
    asked = client.pipeline(transaction=False)
    for key in names:
        asked.xinfo_groups(key)
        asked.xlen(key)
        asked.xpending(key, group)
    answers = asked.execute(raise_on_error=False)
    known = [_group(answers[3 * number], group) for number in range(len(names))]
    first = client.pipeline(transaction=False)
    for key, facts in zip(names, known, strict=True):
        first.xrange(key, min=f"({facts['last-delivered-id'].decode()}", count=1)
    found = []
    for number, (key, rows) in enumerate(zip(names, first.execute(raise_on_error=False), strict=True)):
        _, length, summary = answers[3 * number : 3 * number + 3]
        for answer in (length, rows):
            if isinstance(answer, Exception):
                raise answer
        pending = {} if isinstance(summary, Exception) else summary
        unread = known[number]["lag"] if known[number]["name"] else length
        if unread is None:  # the server does not know once something was deleted between
            unread = _count_after(client, key, known[number]["last-delivered-id"].decode())
        oldest = [row[0] for row in rows] + ([pending["min"]] if pending.get("pending") else [])
        times = [int(entry.partition(b"-")[0]) for entry in oldest]
        found.append(
            Lag(int(unread) if rows else 0, int(pending.get("pending", 0)), min(times) if times else None)
        )
    return found


def _group(answer: Any, group: str) -> dict[str, Any]:
    """The facts of a group by the answer of XINFO GROUPS; those of one that has had nothing, without a name."""
    for facts in answer if isinstance(answer, list) else ():
        if facts["name"] == group.encode():
            return {"lag": None, **facts}
    return {"name": b"", "last-delivered-id": b"0-0", "lag": None}


def _count_after(client: redis.Redis, key: str, after: str) -> int:
    count = 0
    while rows := _page(client, key, after):
        count, after = count + len(rows), rows[-1][0].decode()
    return count


def _page(client: redis.Redis, key: str, after: str) -> list[Any]:
    rows: Any = client.xrange(key, min=f"({after}", count=1000)
    return list(rows)
