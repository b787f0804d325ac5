"""Watch over a command-line agent at work: shows its activity, and ends it with its run."""

from __future__ import annotations

import time
from typing import Final

from orchestrator.agents.options.command import CommandOptions
from orchestrator.errors import AgentProgramError
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.command.process import AgentProcess

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


class Watch:
    """Looks after one process of an agent while it works."""

    def __init__(
        self, context: Context, options: CommandOptions, process: AgentProcess, live: LiveStatus
    ) -> None:
        self._context = context
        self._options = options
        self._process = process
        self._live = live
        self._heard_at = time.monotonic()

    def heard(self) -> None:
        """The program is not silent now."""
        self._heard_at = time.monotonic()

    def look(self) -> None:
        """End the process if its run has ended; else show what it does.

        Raises:
            AgentProgramError: the program is silent for too long.
            ClaimLost, SessionStopped, ServerUnavailable: the run cannot go on.
        """
        if self._context.claim_lost:
            self._process.kill()
        elif self._context.stopping:
            self._process.stop()
        else:
            self._live.show()
        limit_s = self._options.silence_limit_s
        if limit_s is not None and time.monotonic() - self._heard_at > limit_s:
            raise AgentProgramError(
                self._options.command[0],
                f"it printed nothing for {limit_s:g} s (silence_limit_s) and was killed",
            )
