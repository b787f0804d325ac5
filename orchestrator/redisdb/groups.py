"""Consumer groups of streams: made where they are missing, and rid of consumers that are gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import redis

from orchestrator.redisdb.scripts import Scripts

#: Milliseconds of silence after which a consumer that holds nothing is forgotten.
GONE_MS: Final = 3_600_000
#: Seconds between two looks for such consumers.
TIDY_EVERY_S: Final = 600.0


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
