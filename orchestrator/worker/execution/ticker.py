"""A thread per process that renews leases and runs timers while its agents work.

It is there from the first run on: a thread for each run would cost a short one more than its own work.
"""

from __future__ import annotations

import os
import threading
from typing import Final, Protocol

from orchestrator import machine
from orchestrator.log import get_logger

#: Seconds between two looks of a process that has nothing due.
_IDLE_S: Final = 5.0

_log = get_logger()


class Beat(Protocol):
    """Something that is to be done again and again."""

    #: When it is due, on the monotonic clock.
    due_at: float

    def beat(self) -> None:
        """Do it, without waiting for long, and say in ``due_at`` when it is due next."""
        ...


class Beats(Protocol):
    """A scheduler of beats."""

    def add(self, beat: Beat) -> None:
        """Carry this out from now on whenever it is due."""
        ...

    def remove(self, beat: Beat) -> None:
        """Carry this out no more; it may be under way at this moment."""
        ...


class Ticker:
    """The beats of one process, and the thread that carries them out."""

    def __init__(self) -> None:
        self.reset()
        # A fork has none of its parent's threads.
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget every beat, and the thread."""
        self._beats: set[Beat] = set()
        self._changed = threading.Condition()
        self._looks_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, beat: Beat) -> None:
        """Carry this out from now on whenever it is due."""
        with self._changed:
            self._beats.add(beat)
            if self._thread is None:
                self._thread = machine.start_thread(self._run, "ticker")
            elif beat.due_at < self._looks_at:
                self._changed.notify()

    def remove(self, beat: Beat) -> None:
        """Carry this out no more; it may be under way at this moment."""
        with self._changed:
            self._beats.discard(beat)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = machine.monotonic()
                due = [beat for beat in self._beats if beat.due_at <= now]
                if not due:
                    # With nothing to do it looks up now and then, so that the next run need not wake it.
                    self._looks_at = min([now + _IDLE_S, *(beat.due_at for beat in self._beats)])
                    self._changed.wait(self._looks_at - now)
            for beat in due:
                try:
                    beat.beat()
                except Exception:  # noqa: BLE001  (what is due for one run must not end the others')
                    _log.exception("beat-failed")
                    beat.due_at = machine.monotonic() + 1.0


#: That of this process.
ticker: Final = Ticker()
