"""Consumer groups of streams: made where they are missing, and rid of consumers that are gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import redis

from orchestrator.redisdb.scripts import Scripts

#: Milliseconds of silence after which a consumer that holds nothing is forgotten.
GONE_MS: Final = 3_600_000
#: Seconds between two looks for such consumers.
TIDY_EVERY_S: Final = 600.0


class Lag(NamedTuple):
    """How far a group is behind the end of a stream."""

    #: Entries that nobody in the group has had, and those that somebody has had and not acknowledged.
    unread: int
    pending: int
    #: When the oldest of them was appended, in ms since the epoch; None: there are none.
    oldest_ms: int | None


def ensure_groups(client: redis.Redis, wanted: Iterable[tuple[str, str]]) -> None:
    """Make groups, each given as (key of the stream, name), that see all that is in their streams, where they are missing.

    Raises:
        redis.ResponseError: a key is not that of a stream. The other groups are made nevertheless.
    """
    pipe = client.pipeline(transaction=False)
    for key, group in wanted:
        pipe.xgroup_create(key, group, id="0", mkstream=True)
    for answer in pipe.execute(raise_on_error=False):
        if isinstance(answer, Exception) and not str(answer).startswith("BUSYGROUP"):
            raise answer


def is_missing_group(error: object) -> bool:
    """Whether a group or its stream is not there any more: it was removed, or the server lost its memory."""
    return isinstance(error, redis.ResponseError) and "NOGROUP" in str(error)


def forget_consumers(
    client: redis.Redis, group: str, streams: Sequence[str], *, idle_ms: int = GONE_MS
) -> int:
    """Take consumers off the records that hold nothing and were silent for so long; how many.

    One that holds something keeps its place until another has taken that over.
    """
    batch = Scripts(client).batch()
    for key in streams:
        batch.script("forget_consumers", [key], [group, idle_ms])
    return sum(answer for answer in batch.execute() if isinstance(answer, int))


def lags(client: redis.Redis, group: str, streams: Sequence[str]) -> list[Lag]:
    """How far a group is behind in each stream. Without the group everything in the stream is unread."""
    asked = client.pipeline(transaction=False)
    for key in streams:
        asked.xinfo_groups(key)
        asked.xlen(key)
        asked.xpending(key, group)
    answers = asked.execute(raise_on_error=False)
    known = [_group(answers[3 * number], group) for number in range(len(streams))]
    first = client.pipeline(transaction=False)
    for key, facts in zip(streams, known, strict=True):
        first.xrange(key, min=f"({facts['last-delivered-id'].decode()}", count=1)
    found = []
    for number, (key, rows) in enumerate(zip(streams, first.execute(raise_on_error=False), strict=True)):
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
