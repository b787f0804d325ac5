"""Ten thousand entries that nobody vouches for, in front of an honest message: they hold it back for a second at most."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from orchestrator.envelope.bodies import Message
from orchestrator.ids import new_message_id
from orchestrator.redisdb import keys
from orchestrator.router.batching import AT_ONCE, RefusalBuffer
from orchestrator.router.received import Rejection
from orchestrator.streams import OUTBOX, Entry, StreamId, stream_key
from orchestrator.streams.priority import FULL_SHARE
from tests.cpu import least_cpu_s
from tests.integration.router.conftest import MESSAGES, flood, unsigned
from tests.kit import Kit

JUNK = 10_000
#: Seconds of processor time of router and server together: twice what it takes at most where nobody else uses the cores.
MOST_S = 2.0
OUT = StreamId(0, OUTBOX, "partner")
HELLO = Message(content="hello")


def unsigned_hello(kit: Kit) -> bytes:
    return unsigned(kit, HELLO)


def unknown_key(kit: Kit) -> bytes:
    data = kit.envelope(HELLO)
    at = data.index(b"key_") + 4
    return data[:at] + b"0" * 32 + data[at + 32 :]


def changed(kit: Kit) -> bytes:
    return kit.envelope(HELLO).replace(b"<content>hello", b"<content>hallo")


def server_cpu_s(kit: Kit) -> float:
    used = cast("dict[str, Any]", kit.redis.info("cpu"))
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


@pytest.mark.parametrize(
    "make", [lambda _: b"junk", unsigned_hello, unknown_key], ids=["text", "unsigned", "unknown"]
)
def test_junk_in_front_of_a_message_holds_it_back_for_a_second_at_most(
    kit: Kit, make: Callable[[Kit], bytes]
) -> None:
    """Of processor time, as others use the machine, too. Nothing is given up before the message is through."""
    data = make(kit)

    def until_routed() -> float:
        kit.redis.delete(stream_key(MESSAGES))
        flood(kit, data, JUNK)
        message_id = new_message_id()
        kit.post(HELLO, message_id=message_id)
        router, mark = kit.router(new_message_id()), keys.seen(0, "lead", message_id)
        before_s = server_cpu_s(kit)

        def route() -> None:
            while not kit.redis.exists(mark):
                router.run_once(block_ms=1)

        router_s = least_cpu_s(route, below_s=0, tries=1)
        return router_s + server_cpu_s(kit) - before_s

    assert any(until_routed() < MOST_S for _ in range(3))


@pytest.mark.parametrize(
    "make", [lambda _: b"junk", unsigned_hello, changed], ids=["text", "unsigned", "changed"]
)
def test_what_was_held_is_given_up_with_its_reason(kit: Kit, make: Callable[[Kit], bytes]) -> None:
    """As soon as nothing else comes, many in one round trip, and nothing of it stays in the stream's group."""
    flood(kit, make(kit), 3 * AT_ONCE)
    router = kit.router()
    while router.run_once(block_ms=1).dead or kit.pending():
        pass
    assert len({(letter.entry, letter.rule) for letter in kit.dead()}) == 3 * AT_ONCE
    assert kit.pending() == 0


def test_what_a_dead_router_held_is_given_up_by_another(kit: Kit) -> None:
    flood(kit, b"junk", 100)
    kit.router("dead").run_once(block_ms=1)
    assert (kit.pending(), kit.dead()) == (100, [])
    other = kit.router("other", reclaim_idle_ms=0)
    while kit.pending():
        other.run_once()
    assert len(kit.dead()) == 100


def test_an_outbox_full_of_junk_holds_back_nobody(kit: Kit) -> None:
    """Outboxes are drained by turns: what others say passes in the next round or two."""
    router = kit.router()
    router.run_once()
    flood(kit, unsigned_hello(kit), JUNK, OUT)
    message_id = new_message_id()
    kit.post(HELLO, message_id=message_id)
    router.run_once(block_ms=1)
    router.run_once(block_ms=1)
    assert kit.redis.exists(keys.seen(0, "lead", message_id))


def test_a_program_above_its_quota_is_slowed_and_loses_nothing(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it wrote stays in its outbox until the minute has passed; every router of the stack keeps to that."""
    monkeypatch.setattr("orchestrator.router.external.outboxes.QUOTA", 100)
    flood(kit, unsigned_hello(kit), 1000, OUT)
    routers = [kit.router(name) for name in ("one", "two")]
    for router in routers * 5:
        router.run_once()
    left = cast("int", kit.redis.xlen(stream_key(OUT)))
    assert 1000 - 2 * FULL_SHARE <= left < 1000
    assert len(kit.dead()) == 1000 - left
    quota = keys.quota(0, "partner")
    assert 0 < cast("int", kit.redis.pttl(quota)) <= 60_000
    kit.redis.delete(quota)  # a minute later
    kit.route("three")
    assert cast("int", kit.redis.xlen(stream_key(OUT))) < left


def test_the_buffer_is_bounded_in_entries_and_octets() -> None:
    refused, small = Rejection(rule="x", reason="y"), Entry(MESSAGES, "1-0", b"12345678", {})
    by_number, by_size = RefusalBuffer(most=2), RefusalBuffer(most_bytes=16)
    for buffer in (by_number, by_size):
        buffer.add(small, refused)
        assert not buffer.full
        buffer.add(small, refused)
        assert buffer.full
        buffer.drop(len(buffer.first()))
        assert (len(buffer), buffer.full) == (0, False)
