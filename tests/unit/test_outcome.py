"""What Celery is told of the runs of a message."""

from __future__ import annotations

import pickle

import pytest
from celery.exceptions import Ignore, Retry

from orchestrator.errors import RunFailed
from workers.outcome import SHOWN_CHARS, RunEnd, celery_outcome


def end(verdict: str, **facts: object) -> RunEnd:
    return RunEnd(run="run_1", verdict=verdict, **facts)  # type: ignore[arg-type]


def test_the_verdicts_of_a_message_are_one_line() -> None:
    """One verdict stands for itself, several are counted."""
    assert celery_outcome([end("finished")]) == "finished"
    ends = [end("finished"), end("refused"), end("finished")]
    assert celery_outcome(ends) == "2 finished, 1 refused"


def test_a_failed_run_is_raised_whatever_became_of_the_others() -> None:
    """As something that any process can read, of bounded length."""
    ends = [end("finished"), end("retry", reason="first"), end("failed", reason="x" * 10_000)]
    with pytest.raises(RunFailed, match="run run_1 failed: xxx") as raised:
        celery_outcome(ends)
    assert len(str(raised.value)) < SHOWN_CHARS + 100
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_a_run_that_is_tried_again_says_when_and_why() -> None:
    with pytest.raises(Retry) as raised:
        celery_outcome([end("finished"), end("retry", reason="ValueError: no", retry_in_s=2.5)])
    assert raised.value.when == 2.5
    assert str(raised.value.exc) == "run run_1 failed: ValueError: no"


def test_a_message_that_comes_again_changes_nothing_that_is_shown() -> None:
    assert celery_outcome([end("refused")]) == "refused"
    with pytest.raises(Ignore):
        celery_outcome([end("refused")], redelivered=True)
    assert celery_outcome([end("refused"), end("finished")], redelivered=True) == "1 refused, 1 finished"
