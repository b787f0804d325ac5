"""Calls to the ledger that outlast an outage of Redis.

Every transition is harmless twice, so a call whose answer got lost is simply made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis

from orchestrator.errors import ServerUnavailable
from orchestrator.log import get_logger
from orchestrator.redisdb.client import is_outage

T = TypeVar("T")

#: Seconds that a worker goes on trying; by then a lost lease has long given the run to another.
PATIENCE_S = 120.0
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 2.0

_log = get_logger()


def persist(call: Callable[[], T], *, what: str, patience_s: float = PATIENCE_S) -> T:
    """What ``call`` returns, tried again for as long as Redis is away or takes no writes.

    Raises:
        ServerUnavailable: Redis stayed away for ``patience_s`` seconds, or refused this very call.
    """
    deadline = time.monotonic() + patience_s
    delay_s = _FIRST_DELAY_S
    while True:
        try:
            return call()
        except (redis.RedisError, OSError) as error:
            if not is_outage(error) or time.monotonic() + delay_s > deadline:
                raise ServerUnavailable("the ledger's Redis", " ".join(str(error).split())) from error
            _log.warning("redis-away", during=what, error=str(error), retry_in_s=round(delay_s, 2))
            time.sleep(delay_s)
            delay_s = min(delay_s * 2, _LONGEST_DELAY_S)


def was_refused(error: ServerUnavailable) -> bool:
    """Whether Redis refused that very call: to make it again at once would end in the same way."""
    return isinstance(error.__cause__, redis.RedisError) and not is_outage(error.__cause__)
