"""Large texts: the ledger holds their beginning, and the whole beside it for as long as their session."""

from __future__ import annotations

from typing import Any

import pytest
import redis as redis_py

from orchestrator.errors import PayloadError
from orchestrator.ids import callback_id
from orchestrator.ledger import Ledger, SessionState, TreeLimits
from orchestrator.ledger.large_text import LargeTexts, beginning
from orchestrator.reconciler.delivery import Delivery
from orchestrator.redisdb import ledger_keys
from tests.kit import Kit
from tests.services import Services

LARGE = "é<large>\n" * 300
SIZE = len(LARGE.encode())


@pytest.fixture
def ledger(redis: redis_py.Redis) -> Ledger:
    return Ledger(redis, limits=TreeLimits(inline_bytes=1000))


def blobs(redis: redis_py.Redis, session: str) -> list[str]:
    return [name.decode() for name in redis.keys(ledger_keys.large_text(session, "*"))]


def test_a_large_answer_reaches_the_parent_as_its_beginning_and_a_reference(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis
) -> None:
    root, child = kit.parent_of("a")
    kit.finish(child, LARGE)
    resumed = kit.resume(root)
    (item,) = resumed.items
    assert resumed.texts[item.id] == LARGE.encode()[:1000].decode(errors="ignore")
    assert item.extra["whole"]["size"] == SIZE
    assert ledger.large_texts.read(item.extra["whole"]) == LARGE
    assert ledger.result(child) == (SessionState.FINISHED, LARGE)
    (name,) = blobs(redis, child)
    assert redis.ttl(name) == -1
    assert kit.balance(root) == (1, 0, 1, 0)


def test_a_whole_that_nothing_came_to_refer_to_expires(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis
) -> None:
    """A worker died between storing it and its commit."""
    root = kit.given()
    short = ledger.large_texts.shorten(root, LARGE, above_bytes=1000)
    (name,) = blobs(redis, root)
    assert 0 < redis.ttl(name) <= 3600
    kit.finish(root, LARGE)
    assert redis.ttl(name) == -1
    assert ledger.large_texts.shorten(root, LARGE, above_bytes=1000) == short
    assert redis.ttl(name) == -1


def test_a_whole_that_is_gone_before_its_commit_is_stored_again(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took so long in between that it had expired."""
    shorten, times = LargeTexts.shorten, []

    def shorten_and_lose(self: LargeTexts, session: str, text: str, **options: Any):
        short = shorten(self, session, text, **options)
        times.append(session)
        if len(times) == 1:
            redis.delete(*blobs(redis, session))
        return short

    monkeypatch.setattr(LargeTexts, "shorten", shorten_and_lose)
    root = kit.given()
    kit.finish(root, LARGE)
    assert len(times) == 2
    assert ledger.result(root) == (SessionState.FINISHED, LARGE)


def test_a_later_small_answer_takes_the_place_of_a_large_one(kit: Kit, ledger: Ledger) -> None:
    root = kit.given()
    kit.finish(root, LARGE)
    ledger.enqueue(root, "again", item_id="itm_00p")
    kit.commit(kit.resume(root).claim, "small")
    assert ledger.result(root) == (SessionState.FINISHED, "small")


def test_a_reason_is_not_kept_whole(kit: Kit, ledger: Ledger, redis: redis_py.Redis) -> None:
    root = kit.given()
    kit.finish(root, "x" * 400_000, status="failed")
    state, reason = ledger.result(root)
    assert (state, reason) == (SessionState.FAILED, beginning("x" * 400_000))
    assert len(reason) < 300_000
    assert blobs(redis, root) == []


def test_what_an_agent_says_may_be_large_too(kit: Kit, ledger: Ledger, redis: redis_py.Redis) -> None:
    """It belongs to who said it, and saying it again stores nothing more."""
    root, parent = kit.given_run()
    child = kit.run(kit.delegate(parent, "a"))
    for _ in range(2):
        kit.say(child, root, LARGE, item="itm_00m")
    item = ledger.item(root, "itm_00m")
    assert ledger.large_texts.read(item.extra["whole"]) == LARGE
    assert len(blobs(redis, child.claim.session)) == 1


def test_large_texts_go_with_their_session(kit: Kit, ledger: Ledger, redis: redis_py.Redis) -> None:
    """When its tree expires, and when everybody is deleted who had heard it; who comes too late is told so."""
    root, first, second = kit.parent_of("a", "b")
    for child in (first, second):
        kit.finish(child, LARGE)
    ref = ledger.item(root, callback_id(first)).extra["whole"]
    ledger.sweep.delete_session(first, root)
    with pytest.raises(PayloadError, match="is not stored"):
        ledger.large_texts.read(ref)
    assert ledger.stop(root, "enough", state="deleted").outcome == "ended"
    Delivery(ledger, lambda _: None).close(root)
    assert ledger.stop(second, "enough", state="deleted").outcome == "over"
    Delivery(ledger, lambda _: None).close(second)
    for child in (first, second):
        assert blobs(redis, child) == []
        assert not redis.exists(ledger_keys.large_texts(child))


def test_a_deleted_childs_large_answer_stays_as_long_as_its_callback(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis
) -> None:
    """Deleting the child takes nothing away from the parent that was told; deleting the parent does."""
    delivery = Delivery(ledger, lambda _: None)
    root, parent = kit.given_run()
    child = kit.run(kit.delegate(parent, "a"))
    kit.say(child, root, LARGE + "said", item="itm_00m")
    kit.commit(child.claim, LARGE)
    kit.commit(parent.claim)
    kit.commit(kit.resume(root).claim)
    ledger.enqueue(child.session.id, "once more", item_id="itm_00p")
    kit.commit(kit.resume(child.session.id).claim, LARGE + "nobody was told")
    assert len(blobs(redis, child.session.id)) == 3
    ledger.stop(child.session.id, "enough", state="deleted")
    delivery.close(child.session.id)
    heard = [ledger.large_texts.read(item.extra["whole"]) for item in ledger.items(root)]
    assert sorted(heard) == [LARGE, LARGE + "said"]
    assert len(blobs(redis, child.session.id)) == 2
    ledger.stop(root, "enough", state="deleted")
    delivery.close(root)
    assert blobs(redis, child.session.id) == []
    assert not redis.exists(ledger_keys.large_texts(child.session.id))


def test_a_large_message_of_a_deleted_parent_stays_as_long_as_its_child(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis
) -> None:
    """However often the parent is cleaned up: its tombstone has no record of a child to which it owes no end."""
    root, parent = kit.given_run()
    child = kit.delegate(parent, "a", callback=False, on_close="abandon")
    kit.say(parent, child, LARGE, item="itm_00m")
    kit.commit(parent.claim)
    ledger.stop(root, "enough", state="deleted")
    for _ in range(3):
        assert ledger.finish_cleanup(root, seen_as=SessionState.DELETED)
        assert len(blobs(redis, root)) == 1
    assert ledger.items(root) == []
    assert ledger.large_texts.read(ledger.item(child, "itm_00m").extra["whole"]) == LARGE
    ledger.stop(child, "enough", state="deleted")
    assert ledger.finish_cleanup(root)
    assert blobs(redis, root) == []
    assert not redis.exists(ledger_keys.large_texts(root))


def inherited(kit: Kit, services: Services) -> tuple[str, str]:
    """An heir that has finished, at 1,000 s, and a pending child of another tree that was handed to it."""
    kit.ledger.set_time(1_000_000)
    heir = kit.given("heir")
    parent = kit.run(kit.given("root"))
    kit.ledger.effect(parent.claim, effect="policy", facts={"close_policy": f"heir:{heir}"})
    child = kit.delegate(parent, "a")
    kit.commit(parent.claim, "boom", status="failed")
    kit.finish(heir)
    services.drain()
    return heir, child


def expire(kit: Kit) -> None:
    """Let the lifetimes of trees pass that began at 1,000 s, one after the other."""
    for step in range(2, 5):
        kit.ledger.set_time(1_000_000 + step * (kit.ledger.limits.tree_ttl_ms + 1))
        kit.services.reaper.run_once()


def test_a_large_message_of_an_heir_stays_until_it_is_read(kit: Kit) -> None:
    """The child that inherited it is of another tree; that of the heir, who said it, has had its time before."""
    services, ledger, ttl_ms = kit.services, kit.ledger, kit.ledger.limits.tree_ttl_ms
    heir, child = inherited(kit, services)
    kit.finish(child)
    asked = kit.resume(heir)
    kit.say(asked, child, LARGE, item="itm_00m")
    kit.commit(asked.claim)
    told = ledger.flush(child).dispatch
    assert told is not None
    services.reaper.run_once()
    ledger.set_time(1_000_000 + ttl_ms + 1)
    services.reaper.run_once()
    held = kit.claim(told)
    (item,) = held.items
    assert ledger.large_texts.read(item.extra["whole"]) == LARGE
    kit.commit(held.claim)
    expire(kit)
    assert ledger.find([heir, child]) == []


def test_a_large_answer_to_an_heir_stays_as_long_as_the_heir(redis: redis_py.Redis, kit: Kit) -> None:
    """The tree in which it was said is over long before, and is kept until the heir's own is gone."""
    services, ledger, ttl_ms = kit.services, kit.ledger, kit.ledger.limits.tree_ttl_ms
    heir, child = inherited(kit, services)
    kit.finish(child, LARGE)
    kit.commit(kit.resume(heir).claim)
    services.reaper.run_once()
    ledger.set_time(1_000_000 + ttl_ms - 1)
    ledger.enqueue(heir, "what was it?", item_id="itm_00p")
    asked = kit.resume(heir)
    ledger.set_time(1_000_000 + ttl_ms + 1)
    services.reaper.run_once()
    (item,) = [i for i in ledger.items(heir) if i.child == child]
    assert ledger.large_texts.read(item.extra["whole"]) == LARGE
    kit.commit(asked.claim)
    expire(kit)
    assert list(ledger.all_roots(0)) == []
    assert blobs(redis, child) == []
