"""What a command-line agent does, shown as the activity of its session: at most every few seconds, the last of it."""

from __future__ import annotations

import time
from typing import Final

from orchestrator.worker.context.context import Context

#: Seconds between two status messages: each is an envelope that is signed, routed and kept.
EVERY_S: Final = 2.0
_CHARS: Final = 200


class LiveStatus:
    """Turns what a program says and does into the status of its session."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next_at = 0.0
        self._last = ""
        self._shown = ""

    def __call__(self, kind: str, what: str) -> None:
        """Take note of something: `tool` or `text`, and what it is."""
        words = " ".join(what.split())
        if words:
            words = f"{kind}: {words}" if kind == "tool" else words
            self._last = words if len(words) <= _CHARS else f"{words[: _CHARS - 1]}…"

    def show(self) -> None:
        """Send the status if there is a new one, and it is time.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: the run cannot go on.
        """
        now = time.monotonic()
        if self._last != self._shown and now >= self._next_at:
            self._next_at, self._shown = now + EVERY_S, self._last
            self._context.status(activity=self._shown)
