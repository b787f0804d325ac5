"""Setting events from signal handlers."""

from __future__ import annotations

import _thread
import threading


def set_soon(*events: threading.Event) -> None:
    """Set events, in this order, from another thread and at once; for signal handlers.

    A handler runs within the main thread, which may be about to wait for the very event and hold its lock: set
    there, the event would never be set, and the process would hang.
    """
    # Not `threading.Thread`, which takes locks of its own when it starts.
    _thread.start_new_thread(_set, events)


def _set(*events: threading.Event) -> None:
    for event in events:
        event.set()
