"""What Celery's events say of a run."""

from __future__ import annotations

import json

import pytest

from orchestrator.worker.execution.printing import SHOWN_CHARS, SHOWN_TRACEBACK_CHARS, RunEnd, celery_event


def end(verdict: str, **facts: object) -> RunEnd:
    return RunEnd(run="run_1", verdict=verdict, **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        ("idle", "task-succeeded"),
        ("finished", "task-succeeded"),
        ("failed", "task-failed"),
        ("retry", "task-retried"),
        ("lost", "task-retried"),
        ("outage", "task-retried"),
        ("stopped", "task-revoked"),
        ("deleted", "task-revoked"),
    ],
)
def test_every_verdict_has_its_event(verdict: str, kind: str) -> None:
    found, about = celery_event(end(verdict), runtime_s=1.5)
    assert found == kind
    assert json.dumps(about)


def test_a_failure_shows_its_reason_and_its_traceback_at_bounded_length() -> None:
    try:
        raise ValueError("y" * 50_000)
    except ValueError as error:
        _, about = celery_event(end("failed", reason="x" * 10_000, error=error), runtime_s=0)
    assert "run_1" in about["exception"]
    assert len(about["exception"]) < SHOWN_CHARS + 100
    assert len(about["traceback"]) == SHOWN_TRACEBACK_CHARS
