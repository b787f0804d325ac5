"""Shows the reaper that this process is there, by a connection of its own that breaks when the process is killed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Final

import redis

from orchestrator.redisdb.holders import connect_holder, own_mark
from orchestrator.worker.execution import ticker

#: Seconds between two looks whether the connection is still there; half of what the reaper misses it for.
_EVERY_S: Final = 0.7
#: Seconds after which an answer is not waited for: leases are renewed by the same thread.
_TIMEOUT_S: Final = 2.0


class _Presence:
    def __init__(self, url: str, mark: str) -> None:
        self.due_at = 0.0
        self._client = connect_holder(url, mark, timeout_s=_TIMEOUT_S)

    def beat(self) -> None:
        # Where the server is away there is nobody to show anything; the next ping connects again.
        with contextlib.suppress(redis.RedisError, OSError):
            self._client.ping()
        self.due_at = time.monotonic() + _EVERY_S


_shown: dict[int, _Presence] = {}
_lock = threading.Lock()


def show(url: str) -> None:
    """Be connected, from now on and for as long as this process lives; again is no more than once."""
    with _lock:
        if os.getpid() in _shown:
            return
        _shown.clear()
        presence = _shown[os.getpid()] = _Presence(url, own_mark())
    # Before the first run is taken: a holder that was never seen is not missed.
    presence.beat()
    ticker.add(presence)
