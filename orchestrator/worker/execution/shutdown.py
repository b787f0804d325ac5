"""The main loop of a worker's process, forked or alone, and how its slots hear that they are to end.

Celery waits for the tasks of its pool, and a slot's task ends only when nothing is ready. The pool's processes are
forks of the worker: they share one byte with it.
"""

from __future__ import annotations

import mmap
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

from celery import bootsteps
from celery.signals import worker_init, worker_shutting_down

from orchestrator.runtime.service import SignsOfLife

_flag = mmap.mmap(-1, 1)


def is_shutting_down() -> bool:
    """Return True if this worker was asked to end."""
    return _flag[0] != 0


class TakeNoMore(bootsteps.StartStopStep):
    """A step of a worker whose end begins: by a signal, by remote control, or because it cannot reach its broker."""

    requires = ("celery.worker.components:Pool",)

    def close(self, parent: Any) -> None:
        """Called before anything of the worker is stopped, which waits for what is at work."""
        _remember()


@worker_init.connect(weak=False)
def _begin(**_: Any) -> None:
    """A byte of its own for each worker: the process that imported this may have forked several."""
    global _flag  # noqa: PLW0603
    _flag = mmap.mmap(-1, 1)


# A signal is heard at once; Celery's own loop may be busy until its task ends, as in a pool of no processes.
@worker_shutting_down.connect(weak=False)
def _remember(**_: Any) -> None:
    _flag[0] = 1


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


@contextmanager
def only_in_this_process() -> Iterator[None]:
    """End a fork that comes to the end of this block, as Python ends a program: its answer and its errors are nobody's."""
    own = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != own:
            _end(error)
        raise
    if os.getpid() != own:
        _end(None)


def _end(error: BaseException | None) -> None:
    code = 0 if error is None else 1
    with suppress(Exception):  # an agent may have closed what is written to
        if isinstance(error, SystemExit) and isinstance(error.code, int | None):
            code = (error.code or 0) & 255
        elif isinstance(error, SystemExit):
            print(error.code, file=sys.stderr)
        elif error is not None:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
