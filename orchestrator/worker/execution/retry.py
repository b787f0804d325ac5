"""Calls to the ledger that outlast an outage of Redis.

Every transition is harmless twice, so a call whose answer got lost is simply made again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import redis

from orchestrator.errors import ServerUnavailable
from orchestrator.log import get_logger
from orchestrator.redisdb.client import is_outage
from orchestrator.redisdb.retry import RETRY_FOR_S, Outage

T = TypeVar("T")

_log = get_logger()


def retry_outages(call: Callable[[], T], *, what: str, retry_for_s: float = RETRY_FOR_S) -> T:
    """What ``call`` returns, tried again for as long as Redis is away or takes no writes.

    Raises:
        ServerUnavailable: Redis stayed away for ``retry_for_s`` seconds, or refused this very call.
    """

    def log(error: BaseException, _first: bool, retry_in_s: float) -> None:  # noqa: FBT001  (called by position)
        _log.warning("redis-away", during=what, error=str(error), retry_in_s=round(retry_in_s, 2))

    outage = Outage(log, retry_for_s=retry_for_s)
    while True:
        try:
            return call()
        except (redis.RedisError, OSError) as error:
            outage.bear(error)


def was_refused(error: ServerUnavailable) -> bool:
    """Whether Redis refused that very call: to make it again at once would end in the same way."""
    return isinstance(error.__cause__, redis.RedisError) and not is_outage(error.__cause__)
