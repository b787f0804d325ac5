"""Celery workers: what runs agents. ``celery -A workers worker`` starts one.

from workers import app          # the Celery app of the stack
from workers import Context      # the type of what an agent is called with
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.celery import app
    from orchestrator.worker.context.context import Context

__all__ = ["Context", "app"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: the app looks for a stack, and an agents file needs none.
    if name == "app":
        from orchestrator.celery import app

        return app
    if name == "Context":
        from orchestrator.worker.context.context import Context

        return Context
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
