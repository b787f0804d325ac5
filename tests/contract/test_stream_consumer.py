"""The loop of all consumer groups: what dead consumers held is taken over, once it is due."""

from __future__ import annotations

import pytest
import redis as redis_py

from orchestrator import machine
from orchestrator.redisdb.holders import Connected
from orchestrator.streams import ROUTER_GROUP, Consumer, Entry, Portion, RedisStreams, StreamId
from tests.clock import ManualClock
from tests.waiting import wait_until

FIRST = StreamId(0, "error", "critical")
SECOND = StreamId(0, "message", "low")
BOTH = [FIRST, SECOND]


@pytest.fixture
def streams(redis: redis_py.Redis) -> RedisStreams:
    """Two streams, each with three entries that a consumer was handed and has left."""
    found = RedisStreams(redis)
    found.ensure_groups([ROUTER_GROUP], BOTH)
    for number in range(3):
        for stream in BOTH:
            found.publish(stream, str(number).encode())
    found.read(ROUTER_GROUP, "dead", [Portion(BOTH, 10)])
    return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def heir(streams: RedisStreams, clock: ManualClock) -> Consumer:
    """A consumer that takes over at once what is left."""
    return Consumer(streams, ROUTER_GROUP, "heir", lambda: BOTH, reclaim_idle_ms=0, clock=clock)


def held(streams: RedisStreams, stream: StreamId) -> list[tuple[str, int]]:
    """Who holds each entry, and how often it was handed out."""
    return [(one.consumer, one.deliveries) for one in streams.pending(ROUTER_GROUP, stream, most=10)]


def test_all_that_a_dead_consumer_held_is_taken_over(streams: RedisStreams, heir: Consumer) -> None:
    for entries in heir.left_over(limit=2):
        heir.acknowledge(entries)
    assert [held(streams, stream) for stream in BOTH] == [[], []]
    streams.publish(FIRST, b"new")
    streams.read(ROUTER_GROUP, "dead", [Portion(BOTH, 10)])
    (again,) = next(heir.left_over(limit=2))
    assert (again.data, again.deliveries) == (b"new", 2)


def test_one_at_a_time_a_crash_counts_against_no_other_entry(streams: RedisStreams, heir: Consumer) -> None:
    """A consumer that stops early goes on at once with the next entry, most urgent stream first."""
    (entry,) = next(heir.left_over(limit=1))
    assert (entry.stream, entry.data) == (FIRST, b"0")
    assert held(streams, FIRST) == [("heir", 2), ("dead", 1), ("dead", 1)]
    assert held(streams, SECOND) == [("dead", 1)] * 3
    heir.acknowledge([entry])
    (following,) = next(heir.left_over(limit=1))
    assert (following.stream, following.data) == (FIRST, b"1")


def test_entries_that_one_group_alone_reads_leave_their_stream_when_they_are_acknowledged(
    streams: RedisStreams, heir: Consumer, redis: redis_py.Redis
) -> None:
    entries = next(heir.left_over(limit=3))
    heir.acknowledge(entries[:2], delete=True)
    heir.acknowledge([], delete=True)
    assert redis.xlen("ao:{00}:msg:error:critical") == 1
    assert len(held(streams, FIRST)) == 1


def test_consumers_that_are_gone_are_forgotten_once_they_hold_nothing(
    heir: Consumer, redis: redis_py.Redis
) -> None:
    key = "ao:{00}:msg:error:critical"
    redis.xgroup_createconsumer(key, ROUTER_GROUP, "idle")

    def names() -> set[bytes]:
        return {row["name"] for row in redis.xinfo_consumers(key, ROUTER_GROUP)}

    heir.tidy(gone_ms=-1)
    assert names() == {b"dead"}
    for entries in heir.left_over(limit=10):
        heir.acknowledge(entries)
    heir.tidy(gone_ms=-1)
    assert names() == set()


def test_a_process_that_was_missed_once_and_then_held_nothing_is_not_dead(
    streams: RedisStreams, heir: Consumer, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection broke, and broke again much later: each time it comes back within a second."""
    connected = Connected(frozenset({machine.own_mark()}), oldest_s=90)
    monkeypatch.setattr(streams, "connected", lambda: connected)
    streams.publish(FIRST, b"x")
    (entry,) = streams.read(ROUTER_GROUP, "other@feed.7", [Portion([FIRST], 1)])
    assert heir.dead() == {}
    streams.acknowledge(ROUTER_GROUP, [entry])
    for left in heir.left_over(limit=10):
        heir.acknowledge(left)
    clock.advance(100)
    streams.publish(FIRST, b"y")
    streams.read(ROUTER_GROUP, "other@feed.7", [Portion([FIRST], 1)])
    assert heir.dead() == {}
    clock.advance(1)
    assert heir.dead() == {"other@feed.7": [FIRST]}


def test_a_consumer_that_is_made_anew_takes_over_what_the_one_before_held(
    streams: RedisStreams, clock: ManualClock
) -> None:
    """Both are of this process, whatever the server shows of connections; another process's is left alone."""
    streams.publish(FIRST, b"x")
    streams.read(ROUTER_GROUP, f"before@{machine.own_mark()}", [Portion([FIRST], 1)])
    again = Consumer(streams, ROUTER_GROUP, f"again@{machine.own_mark()}", lambda: BOTH, clock=clock)
    assert again.dead() == {}
    taken: list[Entry] = []

    def took() -> bool:
        clock.advance(1)
        taken.extend(entry for entries in again.left_over(limit=1) for entry in entries)
        return bool(taken)

    wait_until(took)
    assert [entry.data for entry in taken] == [b"x"]


def test_it_is_asked_what_others_hold_when_a_connection_has_vanished(
    streams: RedisStreams, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quiet stack asks for connections alone; one that is gone is followed until its entries are taken over."""
    there = Connected(frozenset({machine.own_mark(), "feed.7"}), oldest_s=90)
    asked, holders = [], streams.holders
    monkeypatch.setattr(streams, "connected", lambda: there)
    monkeypatch.setattr(streams, "holders", lambda *of: asked.append(of) or holders(*of))
    heir = Consumer(streams, ROUTER_GROUP, "heir", lambda: BOTH, clock=clock)
    for _ in range(90):
        assert list(heir.left_over(limit=10)) == []
        clock.advance(1)
    assert len(asked) < 15 + 90 / 15  # a new one has not seen who was there before, and asks for 15 s
    streams.publish(FIRST, b"x")
    streams.read(ROUTER_GROUP, "other@feed.7", [Portion([FIRST], 1)])
    there = Connected(frozenset({machine.own_mark()}), oldest_s=90)
    monkeypatch.setattr("orchestrator.streams.consumer._LOST_IDLE_MS", 0)
    taken: list[bytes | None] = []
    for _ in range(3):
        taken += [entry.data for entries in heir.left_over(limit=10) for entry in entries]
        clock.advance(1)
    assert taken == [b"x"]
