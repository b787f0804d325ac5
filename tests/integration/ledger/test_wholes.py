"""Large texts: the ledger holds their beginning, and the whole beside it for as long as their session."""

from __future__ import annotations

import pytest
import redis as redis_py

from orchestrator.envelope.payload import BlobStore
from orchestrator.errors import PayloadError
from orchestrator.ids import callback_id
from orchestrator.ledger import Ledger, Limits, SessionState
from orchestrator.ledger.wholes import Wholes, beginning
from orchestrator.redisdb import keys

from .conftest import Play

LARGE = "é<large>\n" * 300
SIZE = len(LARGE.encode())


@pytest.fixture
def ledger(redis: redis_py.Redis) -> Ledger:
    return Ledger(redis, limits=Limits(inline_bytes=1000))


def blobs(redis: redis_py.Redis, session: str) -> list[str]:
    return [name.decode() for name in redis.keys(keys.whole(session, "*"))]


def test_a_large_answer_reaches_the_parent_as_its_beginning_and_a_reference(
    play: Play, ledger: Ledger, redis: redis_py.Redis
) -> None:
    root = play.submit()
    parent = play.run(root)
    child = play.delegate(parent, "a")
    play.finish(child, LARGE)
    play.commit(parent.claim)
    resumed = play.resume(root)
    (item,) = resumed.items
    assert resumed.texts[item.id] == LARGE.encode()[:1000].decode(errors="ignore")
    assert item.extra["whole"]["size"] == SIZE
    assert ledger.wholes.read(item.extra["whole"]) == LARGE
    assert ledger.result(child) == (SessionState.FINISHED, LARGE)
    (name,) = blobs(redis, child)
    assert redis.ttl(name) == -1
    assert play.balance(root) == (1, 0, 1, 0)


def test_a_whole_that_nothing_came_to_refer_to_expires(
    play: Play, ledger: Ledger, redis: redis_py.Redis
) -> None:
    """A worker died between storing it and its commit."""
    root = play.submit()
    short = ledger.wholes.shorten(root, LARGE, above_bytes=1000)
    (name,) = blobs(redis, root)
    assert 0 < redis.ttl(name) <= 3600
    play.commit(play.run(root).claim, LARGE)
    assert redis.ttl(name) == -1
    assert ledger.wholes.shorten(root, LARGE, above_bytes=1000) == short
    assert redis.ttl(name) == -1


def test_a_whole_that_is_gone_before_its_commit_is_stored_again(
    play: Play, ledger: Ledger, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took so long in between that it had expired."""
    shorten, times = Wholes.shorten, []

    def shorten_and_lose(self: Wholes, session: str, text: str, *, above_bytes: int):
        short = shorten(self, session, text, above_bytes=above_bytes)
        times.append(session)
        if len(times) == 1:
            redis.delete(*blobs(redis, session))
        return short

    monkeypatch.setattr(Wholes, "shorten", shorten_and_lose)
    root = play.submit()
    play.commit(play.run(root).claim, LARGE)
    assert len(times) == 2
    assert ledger.result(root) == (SessionState.FINISHED, LARGE)


def test_a_later_small_answer_takes_the_place_of_a_large_one(play: Play, ledger: Ledger) -> None:
    root = play.submit()
    play.commit(play.run(root).claim, LARGE)
    ledger.put(root, "again", item_id="itm_00p")
    play.commit(play.resume(root).claim, "small")
    assert ledger.result(root) == (SessionState.FINISHED, "small")


def test_a_reason_is_not_kept_whole(play: Play, ledger: Ledger, redis: redis_py.Redis) -> None:
    root = play.submit()
    play.commit(play.run(root).claim, "x" * 400_000, status="failed")
    state, reason = ledger.result(root)
    assert (state, reason) == (SessionState.FAILED, beginning("x" * 400_000))
    assert len(reason) < 300_000
    assert blobs(redis, root) == []


def test_what_an_agent_says_may_be_large_too(play: Play, ledger: Ledger, redis: redis_py.Redis) -> None:
    """It belongs to who said it, and saying it again stores nothing more."""
    root = play.submit()
    parent = play.run(root)
    child = play.run(play.delegate(parent, "a"))
    for _ in range(2):
        ledger.say(child.claim, root, LARGE, effect="m", item_id="itm_00m", kind="message", priority="normal")
    item = ledger.item(root, "itm_00m")
    assert ledger.wholes.read(item.extra["whole"]) == LARGE
    assert len(blobs(redis, child.claim.session)) == 1


def test_wholes_go_with_their_session(play: Play, ledger: Ledger, redis: redis_py.Redis) -> None:
    """When its tree expires, and when it is deleted; who comes too late for one is told so."""
    root = play.submit()
    parent = play.run(root)
    first, second = play.delegate(parent, "a"), play.delegate(parent, "b")
    for child in (first, second):
        play.finish(child, LARGE)
    play.commit(parent.claim)
    ref = ledger.item(root, callback_id(first)).extra["whole"]
    ledger.prune(first, root)
    assert ledger.stop(second, "enough", state="deleted").outcome == "ended"
    assert ledger.closed(second)
    for child in (first, second):
        assert blobs(redis, child) == []
        assert not redis.exists(keys.wholes(child))
    with pytest.raises(PayloadError, match="is not stored"):
        ledger.wholes.read(ref)
    resumed = play.resume(root)
    assert len(resumed.items) == 2


def test_a_blob_that_is_kept_for_good_does_not_begin_to_expire(redis: redis_py.Redis) -> None:
    """Storing the same content again must not shorten its life."""
    store = BlobStore(redis)
    ref = store.put(b"x" * 1000, ttl_s=5)
    name = keys.blob(0, ref.sha256)
    redis.persist(name)
    store.put(b"x" * 1000, ttl_s=5)
    assert redis.ttl(name) == -1
    store.put_stream([b"x" * 1000], ttl_s=5)
    assert redis.ttl(name) == -1
