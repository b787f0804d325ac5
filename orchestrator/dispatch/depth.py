"""How many messages the broker still holds for a queue."""

from __future__ import annotations

import time

from celery import Celery

from orchestrator.log import get_logger

#: Seconds that an answer holds: a sweep asks for each of its runs.
MEMORY_S = 1.0

_log = get_logger()


class QueueDepth:
    """Asks the broker for the length of a queue, by a passive declaration that every broker understands."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._known: dict[str, tuple[float, int]] = {}

    def __call__(self, queue: str) -> int:
        """Messages that wait in ``queue`` and no worker has taken, up to a second ago; 0 if the broker cannot tell."""
        asked_at, depth = self._known.get(queue, (-MEMORY_S, 0))
        if time.monotonic() - asked_at >= MEMORY_S:
            depth = self._ask(queue)
            self._known[queue] = (time.monotonic(), depth)
        return depth

    def _ask(self, queue: str) -> int:
        try:
            with self._app.connection_for_read() as connection:
                connection.ensure_connection(max_retries=1, interval_start=0.05)
                return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
        except Exception as error:  # noqa: BLE001  (an unknown queue or a broker that is away: nothing is known to be held)
            _log.debug("queue-depth-unknown", queue=queue, error=repr(error))
            return 0
