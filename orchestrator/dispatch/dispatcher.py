"""Sends runs to workers: one Celery message each, by task name, carrying ids only."""

from __future__ import annotations

from collections.abc import Iterable

from celery import Celery
from kombu.exceptions import OperationalError

from orchestrator.dispatch.celery_app import RESUME_TASK, START_TASK
from orchestrator.errors import ServerUnavailable
from orchestrator.ids import derived_uuid
from orchestrator.ledger import Dispatch
from orchestrator.urls import redact_url


def run_task_id(run: str) -> str:
    """The Celery task id of a run's message: the same each time it is sent."""
    return derived_uuid("run", run)


class Dispatcher:
    """Publishes runs to their queues. Safe to share between threads."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def send(self, dispatch: Dispatch, queue: str) -> None:
        """Send one run to the workers of ``queue``.

        Raises:
            ServerUnavailable: the broker does not answer; the ledger's sweep sends the run later.
        """
        self.send_all([(dispatch, queue)])

    def send_all(self, runs: Iterable[tuple[Dispatch, str]]) -> None:
        """Send several runs over one connection.

        Raises:
            ServerUnavailable: the broker does not answer; the rest was not sent.
        """
        try:
            with self._app.amqp.producer_pool.acquire(block=True) as producer:
                for dispatch, queue in runs:
                    self._app.send_task(
                        START_TASK if dispatch.cause == "start" else RESUME_TASK,
                        kwargs={"agent": dispatch.agent, "session": dispatch.session, "run": dispatch.run},
                        task_id=run_task_id(dispatch.run),
                        queue=queue,
                        producer=producer,
                        ignore_result=True,
                    )
        except (OperationalError, OSError) as error:
            broker = redact_url(str(self._app.conf.broker_url))
            raise ServerUnavailable(f"the Celery broker at {broker}", str(error)) from error
