"""Celery as the executor: the app, sending runs by task name, and the results of roots."""

from __future__ import annotations

from orchestrator.dispatch.celery_app import DEFAULT_QUEUE, build_celery
from orchestrator.dispatch.dispatcher import RESUME_TASK, START_TASK, WORK_TASK, Dispatcher
from orchestrator.dispatch.results import WAITING, RootResults

__all__ = [
    "DEFAULT_QUEUE",
    "RESUME_TASK",
    "START_TASK",
    "WAITING",
    "WORK_TASK",
    "Dispatcher",
    "RootResults",
    "build_celery",
]
