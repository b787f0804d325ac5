"""Which reports are buffered, and for how long."""

from __future__ import annotations

import pytest

from orchestrator.router.report_buffer import MANY, REPORT_BUFFER_S, ReportBuffer
from orchestrator.streams import Entry, StreamId

HIGH = StreamId(0, "task-completion", "high")


class Time:
    """A clock that is set by hand."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr("orchestrator.router.report_buffer.time", made)
    return made


def entries(count: int, *, applied: bool = True) -> list[Entry]:
    return [Entry(HIGH, f"{n}-1", b"", {"already_applied": "1"} if applied else {}) for n in range(count)]


def test_what_somebody_waits_for_is_given_back(clock: Time) -> None:
    buffer = ReportBuffer()
    theirs = entries(2, applied=False)
    assert buffer.put([*entries(1), *theirs]) == theirs
    assert (len(buffer.all()), buffer.due()) == (1, ())


def test_the_time_of_the_first_counts(clock: Time) -> None:
    buffer = ReportBuffer()
    buffer.put(entries(1))
    clock.now += REPORT_BUFFER_S * 0.9
    buffer.put(entries(1))
    assert buffer.due() == ()
    assert (buffer.wait_ms(500), buffer.wait_ms(3)) == (pytest.approx(REPORT_BUFFER_S * 100, abs=1), 3)
    clock.now += REPORT_BUFFER_S * 0.1
    assert len(buffer.due()) == 2
    buffer.clear()
    assert (buffer.due(), buffer.wait_ms(500)) == ([], 500)


def test_many_are_due_at_once(clock: Time) -> None:
    buffer = ReportBuffer()
    buffer.put(entries(MANY))
    assert len(buffer.due()) == MANY
