"""Signs of life of a worker from the loop of its main process, which takes tasks and manages the pool."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

from celery import bootsteps

from orchestrator.runtime.service import SignsOfLife

#: Beats of the loop for each heartbeat.
_BEATS: Final = 2


class MainLoop(bootsteps.StartStopStep):
    """A step of Celery's consumer: begun at each connection to the broker, ended while there is none.

    A pool without an event loop, such as threads, gives signs of life from the thread that renews the registration.
    """

    requires = ("celery.worker.consumer:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        consumer.main_loop = self
        self._life: SignsOfLife | None = None
        self._interval_s = 1.0
        self._beating = ExitStack()

    def watch(self, consumer: Any, life: SignsOfLife, *, heartbeat_s: float) -> None:
        """Begin, for these signs of life, now that the worker is ready."""
        self._life, self._interval_s = life, heartbeat_s / _BEATS
        self.start(consumer)

    def start(self, consumer: Any) -> None:
        """There is a connection: the loop begins, or goes on."""
        if self._life is not None and consumer.hub is not None:
            self._beating.close()
            self._beating.enter_context(self._life.of_loop(ends=False))
            entry = consumer.timer.call_repeatedly(self._interval_s, self._life.beat)
            self._beating.callback(entry.cancel)

    def stop(self, consumer: Any) -> None:
        """Expect no sign of life: there is no connection, or the worker ends, which may wait for its runs."""
        self._beating.close()
