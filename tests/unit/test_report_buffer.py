"""Which reports are buffered, and for how long."""

from __future__ import annotations

import math

import pytest
import redis

from orchestrator.router.batching import MANY, REPORT_BUFFER_S, ReportBuffer
from orchestrator.streams import ROUTER_GROUP, Consumer, Entry, RedisStreams, StreamId, all_streams
from orchestrator.streams.pressure import GROWTH, MEMORY_S, SOFT, Backpressure
from orchestrator.streams.priority import SHARES, PriorityReader
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


# --- Reading by priority: the urgent first, and nothing starves.


CRITICAL = StreamId(0, "error", "critical")
LOW = StreamId(0, "message", "low")


def _reader(streams: RedisStreams) -> PriorityReader:
    sources = all_streams()
    streams.ensure_groups([ROUTER_GROUP], sources)
    consumer = Consumer(streams, ROUTER_GROUP, "a", lambda: sources)
    return PriorityReader(consumer, sources)


def test_a_round_is_ordered_by_priority(fake_redis: redis.Redis) -> None:
    """Whatever came first, the more urgent is handed out first."""
    streams = RedisStreams(fake_redis)
    reader = _reader(streams)
    for priority in ("low", "normal", "high", "critical"):
        streams.publish(StreamId(0, "query", priority), priority.encode())
    assert [e.data for e in reader.next_round(block_ms=0)] == [b"critical", b"high", b"normal", b"low"]


def test_a_low_message_is_taken_within_its_bound_under_a_flood(fake_redis: redis.Redis) -> None:
    """A flood of critical messages, refilled before each round, delays the n-th low one by its documented bound."""
    streams = RedisStreams(fake_redis)
    reader = _reader(streams)
    for number in range(30):
        streams.publish(LOW, str(number).encode())
    taken: dict[bytes | None, int] = {}
    for number in range(1, 6):
        for _ in range(200):
            streams.publish(CRITICAL, b"flood")
        round_ = reader.next_round(block_ms=0)
        assert len([e for e in round_ if e.stream == CRITICAL]) >= SHARES["critical"]
        taken |= {e.data: number for e in round_ if e.stream == LOW}
    assert sorted(taken) == sorted(str(n).encode() for n in range(30))
    assert all(taken[str(n).encode()] <= math.ceil((n + 1) / SHARES["low"]) for n in range(30))


def test_without_a_flood_a_round_is_filled_from_below(fake_redis: redis.Redis) -> None:
    """While nothing more urgent waits, lower priorities use the whole round."""
    streams = RedisStreams(fake_redis)
    reader = _reader(streams)
    for number in range(300):
        streams.publish(LOW, str(number).encode())
    assert len(reader.next_round(block_ms=0)) == 128
    assert len(reader.next_round(block_ms=0)) == 128


# --- How long the length of a stream is taken from memory: for as long as it cannot have come near its limit.


STREAM = StreamId(0, "task-delegation", "high")
LIMIT = 100_000


class Server:
    """Knows one length, and counts who asks for it."""

    def __init__(self) -> None:
        self.length = 0
        self.asked = 0

    def xlen(self, _: str) -> int:
        self.asked += 1
        return self.length


@pytest.mark.parametrize(
    ("length", "known_for_s"),
    [(0, MEMORY_S), (int(LIMIT * SOFT) - GROWTH // 2, 0.5), (int(LIMIT * SOFT), 0.0)],
)
def test_a_length_is_asked_for_again_when_it_may_have_come_near(
    length: int, known_for_s: float, stepped: SteppedMachine
) -> None:
    """A stream far from its limit is asked once a second, one that is close to it every time."""
    server = Server()
    server.length = length
    pressure = Backpressure(server, limit=LIMIT)  # type: ignore[arg-type]
    pressure.admit(STREAM)
    if known_for_s:
        stepped.now += known_for_s * 0.9
        pressure.admit(STREAM)
        assert server.asked == 1
    stepped.now += 0.11 * known_for_s
    pressure.admit(STREAM)
    assert server.asked == 2
