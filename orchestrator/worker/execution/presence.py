"""Shows the reaper that this process is there, by a connection of its own that breaks when the process is killed.

A pool process that does not come to it is ended: something in it, such as a regular expression, holds the interpreter and
lets no other thread of it work, so that it renews no lease and hears of no time limit.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
from typing import Final

import redis
from billiard.process import current_process

from orchestrator import machine
from orchestrator.redisdb.holders import connect_holder
from orchestrator.worker.execution.ticker import ticker

#: Seconds between two looks whether the connection is still there; half of what the reaper misses it for.
_EVERY_S: Final = 0.7
#: Seconds after which an answer is not waited for: leases are renewed by the same thread.
_TIMEOUT_S: Final = 2.0
#: A process that stands still for so many leases has lost its runs, however loaded the machine is, and not less than so
#: many seconds.
_STANDS_STILL_LEASES: Final = 2
_LEAST_STANDSTILL_S: Final = 20.0


class _Presence:
    def __init__(self, url: str, mark: str, lease_s: float) -> None:
        self.due_at = 0.0
        self._ends_after_s = max(_STANDS_STILL_LEASES * lease_s, _LEAST_STANDSTILL_S)
        self._armed_until = 0.0
        self._client = connect_holder(url, mark, timeout_s=_TIMEOUT_S)

    def beat(self) -> None:
        if (now := machine.monotonic()) >= self._armed_until and current_process().name != "MainProcess":
            # A thread without the interpreter's lock ends the process; the last words in its log say where it stood.
            faulthandler.dump_traceback_later(self._ends_after_s, exit=True, file=2)
            self._armed_until = now + self._ends_after_s / 4
        # Where the server is away there is nobody to show anything; the next ping connects again.
        with contextlib.suppress(redis.RedisError, OSError):
            self._client.ping()
        self.due_at = machine.monotonic() + _EVERY_S


_presence: _Presence | None = None
_lock = threading.Lock()


def show(url: str, lease_s: float) -> None:
    """Be connected, from now on and for as long as this process lives; a second call does nothing."""
    global _presence  # noqa: PLW0603
    with _lock:
        if _presence is not None:
            return
        presence = _presence = _Presence(url, machine.own_mark(), lease_s)
    # Before the first run is taken: a holder that was never seen is not missed.
    presence.beat()
    ticker.add(presence)


def _forget_the_parents_presence() -> None:
    """A fork shows itself; another thread may have held the lock when it was made."""
    global _presence, _lock
    _presence, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_the_parents_presence)
