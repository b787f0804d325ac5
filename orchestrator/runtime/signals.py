"""Sets events from signal handlers."""

from __future__ import annotations

import _thread
import threading


def set_soon(*events: threading.Event) -> None:
    """Set events from another thread, at once and in this order.

    A signal handler runs in the main thread, which may hold the lock of the event because it is about to wait for it.
    Setting the event in the handler would then deadlock.
    """

    def set_all() -> None:
        for event in events:
            event.set()

    # Not `threading.Thread`, which takes locks of its own when it starts.
    _thread.start_new_thread(set_all, ())
