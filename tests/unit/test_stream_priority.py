"""Reading by priority: the urgent first, and nothing starves."""

from __future__ import annotations

import math

import redis

from orchestrator.streams import ROUTER_GROUP, Consumer, RedisStreams, StreamId, all_streams
from orchestrator.streams.priority import SHARES, PriorityReader

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
