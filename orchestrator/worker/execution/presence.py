"""Shows the reaper that this process is there, by a connection of its own that breaks when the process is killed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Final

import redis

from orchestrator.redisdb.holders import connect_holder, own_mark
from orchestrator.worker.execution.ticker import ticker

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


_presence: _Presence | None = None
_lock = threading.Lock()


def show(url: str) -> None:
    """Be connected, from now on and for as long as this process lives; a second call does nothing."""
    global _presence  # noqa: PLW0603
    with _lock:
        if _presence is not None:
            return
        presence = _presence = _Presence(url, own_mark())
    # Before the first run is taken: a holder that was never seen is not missed.
    presence.beat()
    ticker.add(presence)


def _forget_the_parents_presence() -> None:
    """A fork shows itself; another thread may have held the lock when it was made."""
    global _presence, _lock
    _presence, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_the_parents_presence)
