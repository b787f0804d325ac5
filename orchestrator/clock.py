"""The two clocks: wall time for what is stored, monotonic time for what is waited for."""

from __future__ import annotations

import functools
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What time it is. Injected wherever time matters, so that tests can step it."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the epoch; for storage, never for waiting."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward; for waiting and leases, never for storage."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def isoformat(ms: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC, to the millisecond."""
    return f"{_second(ms // 1000)}.{ms % 1000:03}Z"


@functools.lru_cache(maxsize=16)
def _second(s: int) -> str:
    # What happens in one second is mostly written down in it, too.
    return datetime.fromtimestamp(s, UTC).isoformat(timespec="seconds").removesuffix("+00:00")
