"""How many messages the broker still holds for a queue."""

from __future__ import annotations

from celery import Celery

from orchestrator.log import get_logger

_log = get_logger()


class QueueDepth:
    """Asks the broker for the length of a queue, by a passive declaration that every broker understands."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def __call__(self, queue: str) -> int:
        """Messages that wait in ``queue`` and no worker has taken; 0 when the broker cannot tell."""
        try:
            with self._app.connection_for_read() as connection:
                return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
        except Exception as error:  # noqa: BLE001  (an unknown queue or a broker that is away: nothing is known to be held)
            _log.debug("queue-depth-unknown", queue=queue, error=repr(error))
            return 0
