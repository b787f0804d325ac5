"""A parent with many children: what was looked at once and was not ready is not looked at again and again."""

from __future__ import annotations

import pytest
import redis as redis_py

from orchestrator.ledger import ClaimedRun, Ledger

from .conftest import Play

MANY = 40


@pytest.fixture
def ledger(ledger: Ledger) -> Ledger:
    ledger.set_time(1_000_000)
    return ledger


def _fan(play: Play, root: str, waiting: dict[str, object], **groups: int) -> dict[str, list[str]]:
    """A parent that waits, and its children by group."""
    parent = play.run(root)
    made = {g: [play.delegate(parent, f"{g}{n}", group=g) for n in range(k)] for g, k in groups.items()}
    play.commit(parent.claim, waiting=waiting)
    return made


def _looks(redis: redis_py.Redis) -> tuple[int, ...]:
    """How often one item was read, and how often a page of the queue."""
    stats = redis.info("commandstats")
    return tuple(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("hget", "zrange"))


def test_a_flush_that_finds_nothing_ready_costs_the_same_with_many_queued(
    play: Play, ledger: Ledger, redis: redis_py.Redis
) -> None:
    """Each look reads only what came since the last one, whatever waits already."""
    root = play.submit()
    children = _fan(play, root, {"": {"mode": "all"}}, g=MANY)["g"]
    read = []
    for child in children[:-1]:
        play.finish(child)
        redis.config_resetstat()
        assert ledger.flush(root).outcome == "waits"
        read.append(_looks(redis))
    assert set(read[1:]) == {(2, 0)}
    play.finish(children[-1])
    assert len(play.resume(root).items) == MANY


def test_a_child_costs_few_commands(play: Play, redis: redis_py.Redis) -> None:
    """Those inside scripts, too, from its launch to its parent's resume."""
    root = play.submit()
    redis.config_resetstat()
    for child in _fan(play, root, {"": {"mode": "all"}}, g=MANY)["g"]:
        play.finish(child)
    play.resume(root)
    assert sum(command["calls"] for command in redis.info("commandstats").values()) <= 126 * MANY


def test_something_urgent_overtakes_what_was_looked_at(play: Play, ledger: Ledger) -> None:
    """A question resumes the parent though its policy is not met, and what waited goes on waiting."""
    root = play.submit()
    children = _fan(play, root, {"": {"mode": "all"}}, g=3)["g"]
    play.finish(children[0])
    assert ledger.flush(root).outcome == "waits"
    ledger.enqueue(
        root, "which one?", item_id="itm_00" + "a" * 24, kind="query", priority="low", speaker=children[1]
    )
    asked: ClaimedRun = play.resume(root)
    assert [item.kind for item in asked.items] == ["query"]
    play.commit(asked.claim)
    assert ledger.flush(root).outcome == "waits"
    for child in children[1:]:
        play.finish(child)
    assert [item.child for item in play.resume(root).items] == children


def test_a_group_that_is_met_lets_go_what_was_looked_at(play: Play, ledger: Ledger) -> None:
    """The last of a group makes ready what came of it before, and nothing of another group."""
    root = play.submit()
    children = _fan(play, root, {"": {"mode": "all"}, "a": {"mode": "all"}}, a=3, b=2)
    for child in (children["a"][0], children["b"][0], children["a"][1]):
        play.finish(child)
        assert ledger.flush(root).outcome == "waits"
    play.finish(children["a"][2])
    assert [item.child for item in play.resume(root).items] == children["a"]


def test_a_policy_that_is_changed_is_judged_anew(play: Play, ledger: Ledger) -> None:
    """What waited under the old policy goes with the next run under the new one."""
    root = play.submit()
    children = _fan(play, root, {"": {"mode": "all"}}, g=3)["g"]
    play.finish(children[0])
    assert ledger.flush(root).outcome == "waits"
    ledger.enqueue(root, "go on", item_id="itm_00" + "b" * 24)
    told = play.resume(root)
    play.commit(told.claim, waiting={"": {"mode": "any"}})
    assert [item.child for item in play.resume(root).items] == children[:1]
