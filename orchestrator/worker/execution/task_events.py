"""Shows each run as a Celery task of its own to Flower and `celery events`, over Celery's own event messages.

A slot executes many runs in one Celery task. Their events leave a moment later and together: the runs do
not wait for them, and what a process that dies has not sent is lost.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Final

from billiard.exceptions import WorkerLostError
from celery import Celery

from orchestrator import machine
from orchestrator.dispatch import RESUME_TASK, START_TASK
from orchestrator.ids import derived_uuid, run_id
from orchestrator.ledger import ClaimedRun, Lease
from orchestrator.log import get_logger
from orchestrator.worker.execution.printing import RunEnd, celery_event

#: Seconds that events are gathered.
GATHER_S: Final = 0.5
#: Events that are kept while the broker is away; older ones are dropped.
KEPT: Final = 10_000

_log = get_logger()


def task_id_of(run: str) -> str:
    """The Celery task id under which a run is shown: the same for every attempt."""
    return derived_uuid("run", run)


class TaskEvents:
    """The events of one process, over a Celery app; None: nobody watches. Safe to share between threads."""

    def __init__(self, app: Celery | None = None) -> None:
        self._app = app
        # Celery looks a setting up in several places each time.
        self._wanted = app is not None and bool(app.conf.worker_send_task_events)
        self._lock = threading.Lock()
        # Held while events are sent, so that who flushes returns after what another thread sends.
        self._sending = threading.Lock()
        #: Claim → when its run began, on the monotonic clock.
        self._begun: dict[str, float] = {}
        #: Worker, kind and fields of each event.
        self._waiting: deque[tuple[str, str, dict[str, Any]]] = deque(maxlen=KEPT)

    def begun(self, held: ClaimedRun) -> None:
        """A run was taken."""
        session, run = held.session, held.run
        self._begun[held.claim.claim] = machine.monotonic()
        kwargs = {"agent": session.agent, "session": session.id, "run": run.id, "cause": run.cause}
        about: dict[str, Any] = {"retries": max(0, run.attempt - 1), "args": "()", "kwargs": repr(kwargs)}
        if session.parent:
            about["parent_id"] = task_id_of(run_id(session.parent, 1))
            about["root_id"] = task_id_of(run_id(session.root, 1))
        name = START_TASK if run.cause == "start" else RESUME_TASK
        self._add(held, "task-received", name=name, **about)
        self._add(held, "task-started")

    def ended(self, held: ClaimedRun, end: RunEnd) -> None:
        """A run ended. Its first end counts: one that was ended by force may return later."""
        begun = self._begun.pop(held.claim.claim, None)
        if begun is None:
            return
        if held.session.encrypted:
            end = end.without_words()
        kind, about = celery_event(end, runtime_s=machine.monotonic() - begun)
        self._add(held, kind, **about)

    def died(self, lease: Lease, how: str) -> None:
        """The process that had a run died."""
        self._put(lease.worker, lease.run, "task-failed", exception=repr(WorkerLostError(how)), traceback="")

    def _add(self, held: ClaimedRun, kind: str, **about: Any) -> None:
        self._put(held.run.worker, held.run.id, kind, **about)

    def _put(self, worker: str, run: str, kind: str, **about: Any) -> None:
        if not self._wanted:
            return
        event = {"uuid": task_id_of(run), "timestamp": machine.time(), **about}
        with self._lock:
            first = not self._waiting
            self._waiting.append((worker, kind, event))
        if first:
            # A thread of its own: who renews leases must not wait for a broker.
            timer = threading.Timer(GATHER_S, self.flush)
            timer.daemon = True
            timer.start()

    def flush(self) -> None:
        """Send what was gathered; without a broker it is dropped, as Celery does with what nobody watches."""
        with self._sending:
            with self._lock:
                events = list(self._waiting)
                self._waiting.clear()
            if events and self._app is not None:
                self._send(self._app, events)

    def _send(self, app: Celery, events: list[tuple[str, str, dict[str, Any]]]) -> None:
        try:
            with app.amqp.producer_pool.acquire(block=True) as producer:
                dispatchers: dict[str, Any] = {}
                for worker, kind, event in events:
                    if worker not in dispatchers:
                        dispatchers[worker] = app.events.Dispatcher(
                            producer.connection,
                            hostname=worker,
                            channel=producer.channel,
                            buffer_while_offline=False,
                            buffer_group={"task"},
                            buffer_limit=len(events) + 1,
                        )
                    dispatchers[worker].send(kind, **event)
                for dispatcher in dispatchers.values():
                    dispatcher.flush()
        except Exception as error:  # noqa: BLE001  (whatever a broker's client raises: nobody's work depends on it)
            _log.debug("events-not-sent", events=len(events), error=repr(error))
