"""Clocks that a test sets."""

from __future__ import annotations

import redis as redis_py

from orchestrator.machine import System
from orchestrator.redisdb.raw_pipeline import ServerClock


class ManualClock:
    """A clock that stands still until a test advances it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._now_ms += round(seconds * 1000)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Move the wall clock alone, as an administrator or NTP may."""
        self._now_ms += round(seconds * 1000)


class SteppedMachine(System):
    """This machine, with a monotonic clock that stands still and a wall clock that is ahead, as a test says."""

    def __init__(self, *, monotonic: float | None = None) -> None:
        super().__init__()
        #: What its monotonic clock says; None: what that of this machine says.
        self.now = monotonic
        #: How many seconds its wall clock is ahead of that of this machine.
        self.ahead_s = 0

    def time_ns(self) -> int:
        return super().time_ns() + self.ahead_s * 1_000_000_000

    def monotonic(self) -> float:
        return super().monotonic() if self.now is None else self.now

    def sleep(self, seconds: float) -> None:
        if self.now is None:
            super().sleep(seconds)


class At:
    """A clock that stands still at a moment."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return 0.0


class Ahead(ServerClock):
    """The server's clock, put forward by what a test would else wait for."""

    def __init__(self, client: redis_py.Redis) -> None:
        super().__init__(client)
        self._ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms

    def skip(self, ms: int) -> None:
        """Let that many milliseconds pass."""
        self._ahead_ms += ms
