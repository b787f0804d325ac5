"""Which reports are buffered, and for how long."""

from __future__ import annotations

import pytest

from orchestrator.router.batching import MANY, REPORT_BUFFER_S, ReportBuffer
from orchestrator.streams import Entry, StreamId
from tests.clock import SteppedMachine

HIGH = StreamId(0, "task-completion", "high")


def entries(count: int, *, applied: bool = True) -> list[Entry]:
    return [Entry(HIGH, f"{n}-1", b"", {"already_applied": "1"} if applied else {}) for n in range(count)]


def test_what_somebody_waits_for_is_given_back(stepped: SteppedMachine) -> None:
    buffer = ReportBuffer()
    theirs = entries(2, applied=False)
    assert buffer.put([*entries(1), *theirs]) == theirs
    assert (len(buffer.all()), buffer.due()) == (1, ())


def test_the_time_of_the_first_counts(stepped: SteppedMachine) -> None:
    buffer = ReportBuffer()
    buffer.put(entries(1))
    stepped.now += REPORT_BUFFER_S * 0.9
    buffer.put(entries(1))
    assert buffer.due() == ()
    assert (buffer.wait_ms(500), buffer.wait_ms(3)) == (pytest.approx(REPORT_BUFFER_S * 100, abs=1), 3)
    stepped.now += REPORT_BUFFER_S * 0.1
    assert len(buffer.due()) == 2
    buffer.clear()
    assert (buffer.due(), buffer.wait_ms(500)) == ([], 500)


def test_many_are_due_at_once(stepped: SteppedMachine) -> None:
    buffer = ReportBuffer()
    buffer.put(entries(MANY))
    assert len(buffer.due()) == MANY
