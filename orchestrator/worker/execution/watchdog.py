"""Wakes a worker that sleeps although runs are ready, and ends one whose consumer has gone silent.

Runs are ready, a slot is free, and no ring arrives: it may have been lost, so the worker rings itself.
If it does not hear that either, it is deaf.

On Redis, kombu counts a message whose acknowledgement met a broken connection as being at work for ever; after
as many of them as the worker has slots it takes no more, and says nothing. Such a worker ends as Celery does when
it is asked to, what runs may finish, and its supervisor starts another one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from celery.signals import task_received
from celery.worker import state

from orchestrator import machine
from orchestrator.log import get_logger

#: Seconds of silence that are never too long: a loaded machine is slow, and not deaf.
LEAST_WAIT_S: Final = 10.0
#: Seconds without anything at work after which a worker that was to end for its silence is killed.
END_S: Final = 5.0

_log = get_logger()


class Silence:
    """Tells when a consumer has been silent for too long, from one look to the next."""

    def __init__(self, *, silent_for_s: float) -> None:
        self._silent_for_s = silent_for_s
        self._since: float | None = None

    def lasts(self, *, now: float, free_slot: bool, moved_at: float, waiting: Callable[[], bool]) -> bool:
        """Return True if at each look for `silent_for_s` a slot was free, runs waited and the consumer did not move.

        ``waiting`` is asked only while a slot is free. A silence that was too long is counted from its start again.
        """
        if not free_slot or not waiting():
            self._since = None
            return False
        if self._since is None or moved_at > self._since:
            self._since = now
        if now - self._since < self._silent_for_s:
            return False
        self._since = None
        return True


class Watchdog:
    """Watches the consumer of this worker from a thread of its own, until the process ends."""

    def __init__(
        self,
        consumer: Any,
        ready: Callable[[], Sequence[str]],
        ring: Callable[[str], None],
        *,
        silent_for_s: float,
        end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    ) -> None:
        """Watch a Celery consumer.

        Args:
            consumer: Celery's own, as the signal ``worker_ready`` names it.
            ready: the agents that this worker serves and that have ready runs.
            ring: tells the workers of such an agent.
            silent_for_s: seconds of silence after which the worker ends.
            end: ends the worker; by default as Celery does when it is asked to: what runs may finish.
        """
        self._consumer = consumer
        self._ready = ready
        self._ring = ring
        self._look_every_s = silent_for_s / 5
        self._silence = Silence(silent_for_s=silent_for_s)
        self._end = end
        self._moved_at = machine.monotonic()
        self._ended_it = False

    def start(self) -> None:
        """Begin to watch."""
        task_received.connect(self.note, weak=False)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def note(self, **_: Any) -> None:
        """Take note that the consumer took a message."""
        self._moved_at = machine.monotonic()

    def _watch(self) -> None:
        looking = threading.Event()
        while not looking.wait(self._look_every_s):
            if state.should_stop is not None or state.should_terminate is not None:
                self._see_to_the_end(looking)
                return
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  (the watch goes on, whatever Redis or the consumer goes through)
                _log.debug("watchdog-look-failed", error=repr(error))

    def _see_to_the_end(self, looking: threading.Event) -> None:
        """Kill a worker that is to end for its silence, whose shutdown waits for the broker although nothing is at work."""
        if not self._ended_it:
            return
        idle_s = 0
        while idle_s < END_S:
            looking.wait(1)
            idle_s = 0 if state.reserved_requests else idle_s + 1
        _log.error("consumer-silent", action="the worker is killed: its shutdown waits for the broker")
        os.kill(os.getpid(), signal.SIGKILL)

    def look(self) -> None:
        """See whether the consumer is silent, and end the worker if it is."""
        silent = self._silence.lasts(
            now=machine.monotonic(),
            free_slot=len(state.reserved_requests) < int(self._consumer.pool.num_processes),
            moved_at=self._moved_at,
            waiting=self._wait_for_work,
        )
        if silent:
            _log.error("consumer-silent", action="the worker ends when its runs have")
            self._ended_it = True
            self._end()

    def _wait_for_work(self) -> bool:
        agents = self._ready()
        for agent in agents:
            self._ring(agent)
        return bool(agents)
