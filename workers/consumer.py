"""The part of a Celery worker that takes messages, with task events off the path of the tasks.

Celery publishes a task's events before it goes on with the task, each for itself and waiting for the broker.
Flower needs them soon, not first: here they are gathered for a moment and leave together.
"""

from __future__ import annotations

from typing import Any, Final

from celery.worker.consumer import Consumer

#: Seconds that events of tasks are gathered.
GATHER_S: Final = 0.2


class GatheringConsumer(Consumer):
    """Celery's own, but for when events leave."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._leaving = False

    def on_send_event_buffered(self) -> None:
        """An event was put into the buffer; Celery itself sends a full one at once."""
        if self.hub and not self._leaving:
            self._leaving = True
            self.hub.call_later(GATHER_S, self._let_leave)

    def _let_leave(self) -> None:
        self._leaving = False
        self._flush_events()
