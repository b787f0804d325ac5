"""Listens to the events of a stack's workers, as Flower does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from orchestrator.worker.execution.task_events import task_id_of as run_task_id

from .stack import Stack


class Events:
    """The events that the workers of a stack have sent, by Celery task."""

    def __init__(self) -> None:
        self._seen: list[dict[str, Any]] = []

    def take(self, event: dict[str, Any]) -> None:
        self._seen.append(event)

    @property
    def any(self) -> bool:
        return bool(self._seen)

    def of(self, run: str) -> dict[str, dict[str, Any]]:
        """The last event of each kind about a run's task."""
        return {event["type"]: event for event in self._seen if event.get("uuid") == run_task_id(run)}

    def says(self, kind: str, run: str, words: str) -> bool:
        """Whether an event of that kind about a run's task has these words for its error."""
        own = (e for e in self._seen if e["type"] == kind and e.get("uuid") == run_task_id(run))
        return any(words in e["exception"] for e in own)

    def wait_for(self, kind: str, run: str, stack: Stack) -> dict[str, Any]:
        stack.wait(lambda: kind in self.of(run), f"{kind} of {run}", timeout_s=60)
        return self.of(run)[kind]


@contextmanager
def events_of(stack: Stack) -> Iterator[Events]:
    """Listens as Flower does."""
    events = Events()
    with stack.app.connection() as connection:
        receiver = stack.app.events.Receiver(connection, handlers={"*": events.take})

        def listen() -> None:
            # Without a pause: what is sent between two subscriptions nobody hears.
            for _ in receiver.consume(limit=None, timeout=None, wakeup=True):
                pass

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            # A receiver hears what is sent once it is subscribed; workers send their heartbeats.
            stack.wait(lambda: events.any, "an event", timeout_s=30)
            yield events
        finally:
            receiver.should_stop = True
            thread.join()
