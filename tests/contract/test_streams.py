"""What streams promise on every server: fakeredis, Valkey, Debian's Redis."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.deployment.embedded.valkey import make_socket_dir, remove_socket_dir
from orchestrator.errors import StreamFull
from orchestrator.redisdb.client import connect
from orchestrator.streams import GROUPS, Entry, Portion, RedisStreams, StreamId, stream_key

DELEGATIONS = StreamId(0, "task-delegation", "high")
UPDATES = StreamId(0, "status-update", "low")
BOTH = [DELEGATIONS, UPDATES]


@pytest.fixture(scope="module")
def debian_redis(program: Callable[[str], str]) -> Iterator[str]:
    """The URL of a `redis-server` of the operating system over a unix socket."""
    executable = program("redis-server")
    folder = make_socket_dir()
    socket = Path(folder) / "s"
    process = subprocess.Popen(
        [executable, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 40
    while not socket.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    yield f"unix://{socket}?db=0"
    process.terminate()
    process.wait(60)
    shutil.rmtree(folder, ignore_errors=True)
    remove_socket_dir(folder)


@pytest.fixture(params=["fakeredis", "valkey", "debian"])
def bare(request: pytest.FixtureRequest) -> Iterator[RedisStreams]:
    """The streams of one empty server after the other."""
    match request.param:
        case "fakeredis":
            yield RedisStreams(request.getfixturevalue("fake_redis"))
        case "valkey":
            yield RedisStreams(request.getfixturevalue("redis"))
        case _:
            client = connect(request.getfixturevalue("debian_redis"))
            client.flushall()
            yield RedisStreams(client)
            client.close()


@pytest.fixture
def streams(bare: RedisStreams) -> RedisStreams:
    """They have both groups."""
    bare.ensure_groups(GROUPS, BOTH)
    return bare


def _publish(streams: RedisStreams, number: int, stream: StreamId = DELEGATIONS) -> None:
    for n in range(number):
        streams.publish(stream, f"<m{n}/>".encode())


def _read(
    streams: RedisStreams, *, group: str = "router", consumer: str = "a", count: int = 100
) -> list[Entry]:
    return streams.read(group, consumer, [Portion(BOTH, count)])


def _data(entries: list[Entry]) -> list[bytes | None]:
    return [entry.data for entry in entries]


def test_what_was_published_before_the_group_is_not_missed(bare: RedisStreams) -> None:
    """A group begins with the very first entry."""
    entry_id = bare.publish(DELEGATIONS, b"<one/>")
    bare.ensure_groups(GROUPS, BOTH)
    assert [Entry(DELEGATIONS, entry_id, b"<one/>", {}, 1)] == _read(bare)


def test_making_groups_again_changes_nothing(streams: RedisStreams) -> None:
    """A second service that starts does not make the group see everything again."""
    streams.publish(DELEGATIONS, b"<one/>")
    _read(streams)
    streams.ensure_groups(GROUPS, BOTH)
    assert _read(streams) == []


def test_each_group_gets_everything_and_each_consumer_its_part(streams: RedisStreams) -> None:
    """Two consumers of a group share its entries; another group sees all of them."""
    _publish(streams, 4)
    first = _read(streams, consumer="a", count=3)
    second = _read(streams, consumer="b")
    assert _data(first) == [b"<m0/>", b"<m1/>", b"<m2/>"]
    assert _data(second) == [b"<m3/>"]
    assert _data(_read(streams, group="audit")) == [b"<m0/>", b"<m1/>", b"<m2/>", b"<m3/>"]


def test_portions_are_handed_out_in_their_order(streams: RedisStreams) -> None:
    """The first portion comes first, and each stream gives no more than the portion says."""
    for number in range(3):
        streams.publish(UPDATES, f"<u{number}/>".encode())
        streams.publish(DELEGATIONS, f"<d{number}/>".encode())
    entries = streams.read("router", "a", [Portion([DELEGATIONS], 2), Portion([UPDATES], 1)])
    assert _data(entries) == [b"<d0/>", b"<d1/>", b"<u0/>"]


def test_a_waiting_reader_gives_up_in_time(streams: RedisStreams, request: pytest.FixtureRequest) -> None:
    """A read of empty streams waits as long as it was told and returns nothing."""
    if "fakeredis" in request.node.callspec.params.values():
        pytest.skip("fakeredis answers XREADGROUP BLOCK at once")
    begun = time.monotonic()
    assert streams.read("router", "a", [Portion(BOTH, 5)], block_ms=30) == []
    assert time.monotonic() - begun >= 0.025


def test_an_entry_of_another_program_is_handed_out_as_it_is(streams: RedisStreams) -> None:
    """Further fields travel along."""
    streams.publish(UPDATES, b"\xff\x00not xml", extra={"attempt": "2"})
    (entry,) = _read(streams)
    assert (entry.data, entry.extra) == (b"\xff\x00not xml", {"attempt": "2"})


def test_only_what_lies_idle_is_reclaimed_and_its_deliveries_are_counted(streams: RedisStreams) -> None:
    """A fresh entry stays with its holder; an idle one goes to the next consumer, counted."""
    streams.publish(DELEGATIONS, b"<left/>")
    _read(streams, consumer="dead")
    assert streams.reclaim("router", "b", BOTH, idle_ms=60_000, limit=1) == []
    time.sleep(0.002)
    (second,) = streams.reclaim("router", "b", BOTH, idle_ms=1, limit=1)
    time.sleep(0.002)
    (third,) = streams.reclaim("router", "c", BOTH, idle_ms=1, limit=1)
    assert (second.data, second.deliveries, third.deliveries) == (b"<left/>", 2, 3)


def test_what_is_acknowledged_is_never_handed_out_again(streams: RedisStreams) -> None:
    """An acknowledgement counts once, and ends the matter for its group alone."""
    streams.publish(DELEGATIONS, b"<one/>")
    streams.publish(UPDATES, b"<two/>")
    entries = _read(streams)
    assert streams.acknowledge("router", entries) == 2
    assert streams.acknowledge("router", entries) == 0
    assert streams.reclaim("router", "b", BOTH, idle_ms=0, limit=5) == []
    assert len(_read(streams, group="audit")) == 2


def test_reclaiming_finds_an_entry_behind_many_fresh_ones(streams: RedisStreams) -> None:
    """However much is pending, what is left over is found."""
    _publish(streams, 60, UPDATES)
    entries = _read(streams, consumer="a")
    streams.acknowledge("router", entries[:50])
    time.sleep(0.002)
    assert _data(streams.reclaim("router", "b", BOTH, idle_ms=1, limit=2)) == [b"<m50/>", b"<m51/>"]


def test_nothing_is_trimmed_that_a_group_still_needs(streams: RedisStreams) -> None:
    """Entries go when every configured group has acknowledged them, and no earlier."""
    _publish(streams, 5)
    routed = _read(streams)
    assert streams.trim(GROUPS, BOTH) == 0
    audited = _read(streams, group="audit")
    assert streams.trim(GROUPS, BOTH) == 0
    streams.acknowledge("router", routed)
    streams.acknowledge("audit", [audited[0], audited[1], audited[3]])
    assert streams.trim(GROUPS, BOTH) == 2
    streams.acknowledge("audit", audited)
    assert streams.trim(GROUPS, BOTH) == 3
    assert streams.trim(GROUPS, BOTH) == 0


def test_nothing_is_trimmed_for_a_group_that_does_not_exist_yet(bare: RedisStreams) -> None:
    """A configured group whose service never ran needs everything."""
    bare.ensure_groups(["router"], BOTH)
    bare.publish(DELEGATIONS, b"<one/>")
    bare.acknowledge("router", _read(bare))
    assert bare.trim(GROUPS, BOTH) == 0


def test_an_optional_group_holds_back_trimming_only_where_it_exists(streams: RedisStreams) -> None:
    """An external program's own group keeps what it has not read yet, on the streams on which it was made."""
    streams.ensure_groups(["partner"], [UPDATES])
    for stream in BOTH:
        streams.publish(stream, b"<one/>")
    for group in GROUPS:
        streams.acknowledge(group, _read(streams, group=group))
    assert streams.trim(GROUPS, BOTH, also=["partner", "nobody"]) == 1
    read = streams.read("partner", "p", [Portion([UPDATES], 5)])
    assert streams.trim(GROUPS, BOTH, also=["partner"]) == 0
    streams.acknowledge("partner", read)
    assert streams.trim(GROUPS, BOTH, also=["partner"]) == 1


def test_the_backlog_counts_what_was_ever_published(streams: RedisStreams) -> None:
    """Trimming does not make published entries forgotten, so that the audit trail can be held against them."""
    _publish(streams, 3)
    entries = _read(streams)
    _read(streams, group="audit", count=1)
    streams.acknowledge("router", entries)
    streams.acknowledge("audit", [entries[0]])
    streams.trim(GROUPS, BOTH)
    (row,) = streams.backlog("audit", [DELEGATIONS])
    assert (row.published, row.unread, row.pending) == (3, 2, 0)
    (unused,) = streams.backlog("audit", [StreamId(0, "error", "low")])
    assert (unused.published, unused.unread, unused.pending) == (0, 0, 0)


def test_new_work_is_refused_by_a_full_stream_and_everything_else_taken(bare: RedisStreams) -> None:
    """The limit is the caller's to give: without one, the stream takes the entry."""
    for number in range(3):
        bare.publish(DELEGATIONS, f"<m{number}/>".encode(), limit=3)
    with pytest.raises(StreamFull, match="holds 3 entries"):
        bare.publish(DELEGATIONS, b"<new/>", limit=3)
    bare.publish(DELEGATIONS, b"<reply/>")
    (row,) = bare.backlog("router", [DELEGATIONS])
    assert row.unread == 4


def test_an_overwritten_stream_holds_up_no_other(redis: redis_py.Redis) -> None:
    """It is left alone as soon as it was found."""
    streams = RedisStreams(redis)
    streams.ensure_groups(GROUPS, BOTH)
    redis.set(stream_key(DELEGATIONS), "of another program")
    streams.publish(UPDATES, b"<one/>")
    assert _read(streams) == []
    assert _data(_read(streams)) == [b"<one/>"]
