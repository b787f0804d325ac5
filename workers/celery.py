"""The Celery app, for ``celery -A workers worker``, ``… flower``, ``… orchestra``."""

from __future__ import annotations

from orchestrator.celery import app

__all__ = ["app"]
