"""What is buffered, for how long, and which streams are not looked into meanwhile."""

from __future__ import annotations

import pytest

from orchestrator.router.report_buffer import BLIND_S, MANY, REPORT_BUFFER_S, ReportBuffer
from orchestrator.streams import Entry, StreamId
from orchestrator.streams.priority import SHARES

HIGH = StreamId(0, "task-completion", "high")
CRITICAL = StreamId(0, "error", "critical")


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


def entries(count: int, stream: StreamId = HIGH, *, noted: bool = True) -> list[Entry]:
    return [Entry(stream, f"{n}-1", b"", {"already_applied": "1"} if noted else {}) for n in range(count)]


def test_what_somebody_waits_for_is_given_back(clock: Time) -> None:
    aside = ReportBuffer()
    theirs = entries(2, noted=False)
    assert aside.put([*entries(1), *theirs]) == theirs
    assert (len(aside.all()), aside.due()) == (1, ())


def test_the_time_of_the_first_counts(clock: Time) -> None:
    aside = ReportBuffer()
    aside.put(entries(1))
    clock.now += REPORT_BUFFER_S * 0.9
    aside.put(entries(1))
    assert aside.due() == ()
    clock.now += REPORT_BUFFER_S * 0.1
    assert len(aside.due()) == 2
    aside.clear()
    assert (aside.due(), aside.retry_for_ms(500)) == ([], 500)


def test_many_are_due_at_once(clock: Time) -> None:
    aside = ReportBuffer()
    aside.put(entries(MANY))
    assert len(aside.due()) == MANY


def test_their_streams_are_left_out_for_a_moment(clock: Time) -> None:
    aside = ReportBuffer()
    aside.put(entries(1))
    assert (aside.streams, aside.retry_for_ms(500)) == ({HIGH}, pytest.approx(BLIND_S * 1000, abs=1))
    clock.now += BLIND_S
    assert aside.streams == ()
    assert aside.retry_for_ms(500) == pytest.approx((REPORT_BUFFER_S - BLIND_S) * 1000, abs=1)
    assert aside.retry_for_ms(3) == 3


@pytest.mark.parametrize(
    ("stream", "count"), [(CRITICAL, 1), (HIGH, SHARES["high"])], ids=["critical", "a whole share"]
)
def test_where_there_may_be_what_is_urgent_or_more_is_looked_at_all_times(
    clock: Time, stream: StreamId, count: int
) -> None:
    aside = ReportBuffer()
    aside.put(entries(count, stream))
    assert aside.streams == set()
