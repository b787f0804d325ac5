"""The runs of one Celery message, one after the other; what would have to wait is given back to the broker.

Bundled runs save the broker and the worker a message each. That pays while runs are short. As soon as one
takes its time the others are sent again, each in a message of its own, so that free slots take them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from celery.exceptions import Reject

from orchestrator.log import get_logger
from workers import pulse

#: Seconds that one run may take, and all together, before the rest of a message is given back.
RUN_S: Final = 0.05
ALL_S: Final = 0.25

_log = get_logger()


class Ticket(NamedTuple):
    """One run that is to be executed."""

    agent: str
    session: str
    run: str


class Bundle:
    """Hands out tickets in order. Use it as a ``with`` block; ``give_back`` gets what was not handed out in time."""

    def __init__(self, tickets: Sequence[Ticket], give_back: Callable[[Sequence[Ticket]], None]) -> None:
        self._rest = list(reversed(tickets))
        self._give_back = give_back
        self._lock = threading.Lock()
        self._began_at = self._run_began_at = time.monotonic()
        #: When the rest is to be given back, as far as can be said now, on the monotonic clock.
        self.due_at = self._began_at + RUN_S

    def next(self) -> Ticket | None:
        """The next run to execute, if there is one."""
        with self._lock:
            self._run_began_at = time.monotonic()
            return self._rest.pop() if self._rest else None

    def __enter__(self) -> Self:
        if len(self._rest) > 1:
            pulse.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pulse.remove(self)
        # A message that is rejected comes back whole; after any other error nobody else has the rest.
        if error is not None and not isinstance(error, Reject):
            self._return_all()

    def beat(self) -> None:
        """Give the rest back if it would have to wait."""
        self.due_at = min(self._run_began_at + RUN_S, self._began_at + ALL_S)
        if time.monotonic() >= self.due_at:
            pulse.remove(self)
            # Whoever keeps leases does not wait for a broker.
            threading.Thread(target=self._return_all, name="give-back", daemon=True).start()

    def _return_all(self) -> None:
        with self._lock:
            rest, self._rest = self._rest[::-1], []
        try:
            if rest:
                self._give_back(rest)
        except Exception as error:  # noqa: BLE001  (whatever a broker's client raises: the sweep sends them again)
            _log.warning("runs-not-given-back", runs=len(rest), error=repr(error))
