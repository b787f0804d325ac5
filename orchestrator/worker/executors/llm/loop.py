"""The event loop on which the model agents of one process run.

The connections of the providers' clients belong to a loop, so there is one for the life of the process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from orchestrator.worker.context.waits import share_this_thread

T = TypeVar("T")

#: Seconds between two looks at whether the run may go on.
_LOOK_S: Final = 0.5
#: Seconds after which an end by force has come, if it ends the process: of a pool of threads it does not.
_MORE_S: Final = 10.0

_lock = threading.Lock()
_loop: tuple[int, asyncio.AbstractEventLoop] | None = None


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop  # noqa: PLW0603  (one for each process)
    with _lock:
        if _loop is None or _loop[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(loop,), name="model-agents", daemon=True).start()
            _loop = (os.getpid(), loop)
        return _loop[1]


def _run(loop: asyncio.AbstractEventLoop) -> None:
    share_this_thread()
    while True:
        # A task that raises one of these ends the loop, on which others work, before its own error gets to its run.
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


async def _heard(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await it; what it raises after it was cancelled is for nobody, and no traceback for the log."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return await coroutine


def run_coroutine(coroutine: Coroutine[Any, Any, T], check: Callable[[], None], *, grace_s: float) -> T:
    """Run a coroutine on the loop of this process and return what it returns.

    ``check`` is called now and then; when it raises, the coroutine is cancelled and the error passes through. A tool that
    blocks the loop keeps it from every model agent of this process: its run has not ended before the loop is free, and so
    its end by force, after ``grace_s`` seconds, ends the process.

    Raises:
        BaseException: whatever the coroutine, ``check`` or a signal raises.
    """
    loop = _running_loop()
    future = asyncio.run_coroutine_threadsafe(_heard(coroutine), loop)
    try:
        while True:
            try:
                return future.result(timeout=_LOOK_S)
            except TimeoutError:
                if future.done():
                    return future.result()
                check()
    finally:
        if not future.done():
            future.cancel()
            free = threading.Event()
            loop.call_soon_threadsafe(free.set)
            free.wait(grace_s + _MORE_S)
