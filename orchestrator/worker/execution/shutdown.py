"""Tells the slots of a worker that it is to end, so that they take no other run.

Celery waits for the tasks of its pool, and a slot's task ends only when nothing is ready. The pool's processes are
forks of the worker: they share one byte with it.
"""

from __future__ import annotations

import mmap
from typing import Any

from celery import bootsteps
from celery.signals import worker_init, worker_shutting_down

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
