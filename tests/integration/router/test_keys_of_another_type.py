"""A key that somebody has overwritten with another type: the router loses no message by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis as redis_py

from orchestrator.envelope.bodies import Message
from orchestrator.envelope.validate import check
from orchestrator.redisdb import keys
from orchestrator.router.deadletters.replay import Replays
from orchestrator.router.delayed.parked import Wait
from orchestrator.router.router import Router
from orchestrator.streams import OUTBOX, ROUTER_GROUP, Portion, StreamId, stream_key
from tests.integration.router.conftest import Stack

BOX = StreamId(0, OUTBOX, "partner")
MESSAGES = StreamId(0, "message", "normal")
HELLO = Message(content="hello")


@contextmanager
def overwritten(redis: redis_py.Redis, key: str) -> Iterator[None]:
    """The key holds a text; afterwards what it held before."""
    whole = redis.dump(key)
    redis.set(key, "of another type")
    yield
    redis.delete(key)
    if whole is not None:
        redis.restore(key, 0, whole)


def rounds(router: Router) -> None:
    for _ in range(3):
        router.run_once()


@pytest.mark.parametrize("kind", ["text", "hash", "text that never expires"])
def test_a_counter_of_another_type_ends_no_router(stack: Stack, kind: str) -> None:
    """It counts for a minute only, so that it begins again."""
    quota = keys.quota(0, "partner")
    if kind == "hash":
        stack.redis.hset(quota, "x", "1")
    else:
        stack.redis.set(quota, "5" if kind == "text that never expires" else "many")
    stack.redis.xadd(stream_key(BOX), {"envelope": stack.envelope(HELLO, sender="partner")})
    router = stack.router()
    router.run_once()
    assert stack.redis.xlen(stream_key(MESSAGES)) == 1
    assert int(stack.redis.get(quota) or 0) in (1, 6)
    assert 0 < stack.redis.pttl(quota) <= 60_000


@pytest.mark.parametrize("key", [stream_key(MESSAGES), keys.totals(0)])
def test_an_outbox_keeps_what_cannot_be_moved(stack: Stack, key: str) -> None:
    router = stack.router("one")
    router.run_once()
    stack.redis.xadd(stream_key(BOX), {"envelope": stack.envelope(HELLO, sender="partner")})
    with overwritten(stack.redis, key):
        rounds(router)
        assert stack.redis.xlen(stream_key(BOX)) == 1
    stack.router("two", reclaim_idle_ms=0).run_once()
    assert stack.redis.xlen(stream_key(BOX)) == 0


@pytest.mark.parametrize("key", [keys.dead(0), keys.dead_index(0), keys.dead_usage(0), keys.totals(0)])
def test_an_entry_that_cannot_become_a_dead_letter_stays_pending(stack: Stack, key: str) -> None:
    router = stack.router("one")
    stack.publish(b"<junk/>", "message")
    with overwritten(stack.redis, key):
        rounds(router)
    assert stack.redis.xpending(stream_key(MESSAGES), ROUTER_GROUP)["pending"] == 1
    stack.router("two", reclaim_idle_ms=0).run_once()
    assert len(stack.dead()) == 1


def test_an_entry_that_cannot_be_parked_stays_pending(stack: Stack) -> None:
    stack.streams.ensure_groups([ROUTER_GROUP], [MESSAGES])
    stack.publish(stack.envelope(HELLO), "message")
    (entry,) = stack.streams.read(ROUTER_GROUP, "one", [Portion([MESSAGES], 1)])
    message = check(entry.data or b"").message
    assert message is not None
    waiting = stack.delayed

    def park() -> bool:
        return waiting.park(entry, message, Wait(due_ms=0), attempt=2, now_ms=0, rule="r", reason="later")

    with overwritten(stack.redis, keys.parked(0)), pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        park()
    assert park()


@pytest.mark.parametrize("key", [stream_key(MESSAGES), keys.totals(0)])
def test_a_message_that_cannot_be_put_back_stays_parked(stack: Stack, key: str) -> None:
    test_an_entry_that_cannot_be_parked_stays_pending(stack)
    waiting = stack.delayed
    parked = waiting.all()
    with overwritten(stack.redis, key), pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        waiting.release(parked)
    assert waiting.release(parked) == 1
    assert stack.redis.xlen(stream_key(MESSAGES)) == 2


@pytest.mark.parametrize("key", [stream_key(MESSAGES), keys.totals(0), keys.dead_usage(0)])
def test_a_dead_letter_whose_drop_cannot_be_recorded_stays(stack: Stack, key: str) -> None:
    stack.publish(b"<junk/>", "message")
    stack.router().run_once()
    (dead,) = stack.dead()
    with overwritten(stack.redis, key), pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        Replays(stack.parts).drop(dead)
    assert stack.dead() == [dead]
    assert Replays(stack.parts).drop(dead)
