"""Celery as the executor: the app, sending runs by task name, and the results of roots."""

from __future__ import annotations

from orchestrator.dispatch.celery_app import DEFAULT_QUEUE, RESUME_TASK, START_TASK, build_celery
from orchestrator.dispatch.dispatcher import Dispatcher, run_task_id
from orchestrator.dispatch.results import WAITING, RootResults

__all__ = [
    "DEFAULT_QUEUE",
    "RESUME_TASK",
    "START_TASK",
    "WAITING",
    "Dispatcher",
    "RootResults",
    "build_celery",
    "run_task_id",
]
