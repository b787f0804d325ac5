"""Output of agents: its end for each try of the last runs, kept beside the ledger. Nothing depends on it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

import redis

from orchestrator.redisdb import ledger_keys

#: Runs of a session, and tries of each run, whose prints are kept: a later one takes the place of an earlier one.
RUNS: Final = 10
TRIES: Final = 5


@dataclass(frozen=True, kw_only=True)
class Printed:
    """Output of one try of a run."""

    run: str
    attempt: int
    at_ms: int  #: when it was written down, in milliseconds since the epoch
    size: int  #: bytes that were printed
    text: str  #: the end of them


class PrintedTexts:
    """Outputs of sessions. The transitions of the ledger never wait for them."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def write(self, session: str, number: int, printed: Printed, *, ttl_s: float) -> None:
        """Store the output so far of a try of the session's ``number``-th run, in place of what was there.

        Raises:
            redis.RedisError: it could not be written.
        """
        key = ledger_keys.printed(session)
        pipeline = self._client.pipeline(transaction=False)
        place = f"{number % RUNS}:{printed.attempt % TRIES}"
        pipeline.hset(key, place, json.dumps(asdict(printed), ensure_ascii=True))
        pipeline.expire(key, max(1, round(ttl_s)))
        pipeline.execute()

    def read(self, session: str) -> list[Printed]:
        """Return the outputs that are kept, oldest first; unreadable ones are left out.

        Raises:
            redis.RedisError: the server does not answer.
        """
        raw: Any = self._client.hvals(ledger_keys.printed(session))
        found = []
        for value in raw:
            try:
                found.append(Printed(**json.loads(value)))
            except (ValueError, TypeError):
                continue
        return sorted(found, key=lambda one: (one.at_ms, one.attempt))
