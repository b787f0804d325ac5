"""Wakes a consumer that has gone silent: messages wait, a slot is free, and nothing is taken.

On Redis, kombu counts a message whose acknowledgement met a broken connection as being at work for ever; after
as many of them as the worker has slots it takes no more, and says nothing. Told that its connection broke, it
begins anew. If that does not help either, the worker ends, and whoever supervises it starts another one.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from celery.signals import task_received
from celery.worker import state

from orchestrator.log import get_logger

#: Seconds of silence that are never too long: a loaded machine is slow, and not deaf.
LEAST_PATIENCE_S: Final = 5.0

_log = get_logger()


class Silence:
    """Tells when a consumer has been silent for too long, from one look to the next."""

    def __init__(self, *, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since: float | None = None

    def lasts(self, *, now: float, free_slot: bool, moved_at: float, waiting: Callable[[], bool]) -> bool:
        """Whether at every look for so long a slot was free and messages waited, and the consumer did not move.

        ``waiting`` is asked only while a slot is free. A silence that was too long is counted from its start again.
        """
        if not free_slot or not waiting():
            self._since = None
            return False
        if self._since is None or moved_at > self._since:
            self._since = now
        if now - self._since < self._patience_s:
            return False
        self._since = None
        return True


class Watchdog:
    """Watches the consumer of this worker from a thread of its own, until the process ends."""

    def __init__(
        self,
        consumer: Any,
        depth: Callable[[str], int],
        *,
        patience_s: float,
        end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    ) -> None:
        """Watch a Celery consumer.

        Args:
            consumer: Celery's own, as the signal ``worker_ready`` names it.
            depth: how many messages wait in a queue.
            patience_s: seconds of silence after which it is woken, and as many again until the worker ends.
            end: ends the worker; by default as Celery does when it is asked to: what runs may finish.
        """
        self._consumer = consumer
        self._depth = depth
        self._look_every_s = patience_s / 5
        self._silence = Silence(patience_s=patience_s)
        self._end = end
        self._moved_at = time.monotonic()
        self._restarts = consumer.restart_count
        self._woken = False

    def start(self) -> None:
        """Begin to watch."""
        task_received.connect(self.note, weak=False)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def note(self, **_: Any) -> None:
        """Take note that the consumer took a message."""
        self._moved_at = time.monotonic()
        self._woken = False

    def _watch(self) -> None:
        looking = threading.Event()
        while not looking.wait(self._look_every_s):
            if state.should_stop is not None or state.should_terminate is not None:
                return
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  (the watch goes on, whatever the consumer is going through)
                _log.debug("watchdog-looked-in-vain", error=repr(error))

    def look(self) -> None:
        """See whether the consumer is silent, and do what is to be done about it."""
        now = time.monotonic()
        if self._consumer.restart_count != self._restarts:
            self._restarts, self._moved_at = self._consumer.restart_count, now
        silent = self._silence.lasts(
            now=now,
            free_slot=self._has_free_slot(),
            moved_at=self._moved_at,
            waiting=lambda: any(self._depth(queue.name) for queue in self._consumer.task_consumer.queues),
        )
        if not silent:
            return
        if self._woken:
            _log.error("consumer-silent", action="the worker ends when its runs have")
            self._end()
        else:
            self._woken = True
            _log.error(
                "consumer-silent", action="it is told that its connection broke, so that it begins anew"
            )
            self._consumer.call_soon(_break_off)
        self._hang_up()

    def _has_free_slot(self) -> bool:
        # Who limits the rate of a task wants its messages to wait.
        if any(bucket is not None for bucket in self._consumer.task_buckets.values()):
            return False
        return len(state.reserved_requests) < int(self._consumer.pool.num_processes)

    def _hang_up(self) -> None:
        """Let nobody wait for an answer that is not to come: before it gives a connection up, kombu does, on Redis."""
        client = vars(self._consumer.task_consumer.channel).get("client")
        connection = getattr(getattr(client, "connection", None), "_sock", None)
        if isinstance(connection, socket.socket):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _break_off() -> None:
    """Run by the consumer in its own loop, which takes it for a lost connection."""
    raise ConnectionResetError("nothing came although messages waited")
