"""Tells the slots of a worker that it is shutting down, so that they take no other run.

Celery waits for the tasks of its pool, and a slot's task ends only when nothing is ready. The pool's processes are
forks of the worker: they share one byte with it.
"""

from __future__ import annotations

import mmap
from typing import Any

from celery.signals import worker_init, worker_shutting_down

_flag = mmap.mmap(-1, 1)


def is_shutting_down() -> bool:
    """Whether this worker was asked to end."""
    return _flag[0] != 0


@worker_init.connect(weak=False)
def _begin(**_: Any) -> None:
    """A byte of its own for each worker: the process that imported this may have forked several."""
    global _flag  # noqa: PLW0603
    _flag = mmap.mmap(-1, 1)


@worker_shutting_down.connect(weak=False)
def _remember(**_: Any) -> None:
    _flag[0] = 1
