"""The Celery tasks of a stack, by name."""

from __future__ import annotations

from typing import Final

START_TASK: Final = "orchestrator.start_session"
RESUME_TASK: Final = "orchestrator.resume_session"
#: What wakes a slot that sleeps: it takes ready runs from the ledger until there is none.
WORK_TASK: Final = "orchestrator.work"
