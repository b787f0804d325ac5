"""Notices which processes of a data folder hang: they answer their probe with that, or not at all, for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from orchestrator import machine
from orchestrator.runtime.probe import ALIVE, answers

#: Looks within the time after which a process hangs.
_LOOKS: Final = 8


class HangWatch:
    """Asks all processes of a data folder again and again, from a thread of its own until it is closed.

    Time in which this process did not look itself, as while its machine slept, hardly counts.
    """

    def __init__(self, data: str, *, after_s: float, ask: Callable[[str], dict[int, str]] = answers) -> None:
        """Watch a folder; a process hangs that was not well for ``after_s`` seconds of looks."""
        self._data, self._after_s, self._ask = data, after_s, ask
        self._silent_s: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = machine.start_thread(self._watch, "hang-watch")

    def hangs(self, pid: int) -> bool:
        """Return True if a process hangs."""
        return self._silent_s.get(pid, 0.0) >= self._after_s

    def close(self) -> None:
        """End."""
        self._stop.set()

    def _watch(self) -> None:
        every_s, looked_at = self._after_s / _LOOKS, time.monotonic()
        while not self._stop.wait(every_s):
            found, now = self._ask(self._data), time.monotonic()
            more_s, looked_at = min(now - looked_at, 2 * every_s), now
            before = self._silent_s
            self._silent_s = {
                pid: before.get(pid, 0.0) + more_s for pid, line in found.items() if line != ALIVE
            }
