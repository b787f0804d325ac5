"""When a parent is resumed: deadlines, windows and groups, and what a session that never ran is spared."""

from __future__ import annotations

import pytest
import redis as redis_py

from orchestrator.ledger import ClaimedRun, Ledger, SessionState
from tests.kit import Kit


@pytest.fixture
def ledger(ledger: Ledger) -> Ledger:
    ledger.set_time(1_000_000)
    return ledger


def test_a_deadline_resumes_a_parent_to_whom_nothing_has_come(kit: Kit, ledger: Ledger) -> None:
    """It is told for which group it was resumed, and once; what comes later is delivered as it comes."""
    root, child, other = kit.parent_of("a", "b", waiting={"": {"mode": "all", "deadline_ms": 1_060_000}})
    flushed = ledger.flush(root)
    assert (flushed.outcome, flushed.detail) == ("waits", "1060000")
    ledger.set_time(1_060_000)
    assert ledger.sweep.due_timers(0) == [("flush", root)]
    resumed = kit.resume(root)
    assert (resumed.run.overdue, resumed.items) == (("",), ())
    kit.commit(resumed.claim)
    assert ledger.flush(root).outcome == "empty"
    kit.finish(child)
    assert [i.child for i in kit.resume(root).items] == [child]
    assert ledger.session(other).state == SessionState.PENDING


def test_a_deadline_delivers_what_is_there_and_says_that_something_is_missing(
    kit: Kit, ledger: Ledger
) -> None:
    root, *children = kit.parent_of(*"ab", waiting={"": {"mode": "all", "deadline_ms": 1_060_000}})
    kit.finish(children[0])
    assert ledger.flush(root).outcome == "waits"
    ledger.set_time(1_060_001)
    resumed = kit.resume(root)
    assert (resumed.run.overdue, [i.child for i in resumed.items]) == (("",), children[:1])


def test_a_deadline_that_is_kept_leaves_no_trace(kit: Kit, ledger: Ledger) -> None:
    root, child = kit.parent_of("a", waiting={"": {"mode": "all", "deadline_ms": 1_060_000}})
    ledger.flush(root)
    kit.finish(child)
    ledger.set_time(2_000_000)
    assert kit.resume(root).run.overdue == ()
    assert ledger.sweep.due_timers(0) == []


def test_a_deadline_that_was_kept_is_not_there_for_children_that_are_launched_next(
    kit: Kit, ledger: Ledger
) -> None:
    """It would be over at once, and with it the wish to wait for all of them."""
    ledger.set_time(1_000_000)
    root, first = kit.parent_of("first", waiting={"": {"mode": "all", "deadline_ms": 1_060_000}})
    kit.finish(first)
    held = kit.resume(root)
    second = [kit.delegate(held, f"second {n}") for n in range(2)]
    ledger.set_time(1_070_000)
    kit.commit(held.claim)
    assert ledger.flush(root).outcome == "empty"
    kit.finish(second[0])
    assert ledger.flush(root).outcome == "waits"
    kit.finish(second[1])
    assert len(kit.resume(root).items) == 2


def test_groups_have_their_own_policies_and_deadlines(kit: Kit, ledger: Ledger) -> None:
    """A group without a rule is under the default one; the next deadline is the one that is slept for."""
    root, parent = kit.given_run()
    names = {g: [kit.delegate(parent, f"{g}{n}", group=g) for n in range(2)] for g in ("tests", "docs", "")}
    rules = {
        "": {"mode": "all", "deadline_ms": 1_300_000},
        "tests": {"mode": "all", "deadline_ms": 1_100_000},
        "docs": {"mode": "quorum", "k": 1},
    }
    kit.commit(parent.claim, waiting=rules)
    assert ledger.flush(root).detail == "1100000"
    kit.finish(names["tests"][0])
    assert ledger.flush(root).outcome == "waits"
    kit.finish(names["docs"][0])
    resumed = kit.resume(root)
    assert [i.child for i in resumed.items] == [names["docs"][0]]
    kit.commit(resumed.claim)
    ledger.set_time(1_100_000)
    resumed = kit.resume(root)
    assert (resumed.run.overdue, [i.child for i in resumed.items]) == (("tests",), [names["tests"][0]])
    kit.commit(resumed.claim)
    assert ledger.flush(root).detail == "1300000"
    ledger.set_time(1_300_000)
    assert kit.resume(root).run.overdue == ("",)


def test_a_window_of_a_group_folds_only_that_group(kit: Kit, ledger: Ledger) -> None:
    root, parent = kit.given_run()
    slow = [kit.delegate(parent, f"s{n}", group="slow") for n in range(2)]
    quick = kit.delegate(parent, "q", group="quick")
    kit.commit(parent.claim, waiting={"slow": {"mode": "any", "window_ms": 500}})
    kit.finish(slow[0])
    assert ledger.flush(root).detail == "1000500"
    kit.finish(quick)
    resumed = kit.resume(root)
    assert [i.child for i in resumed.items] == [slow[0], quick]
    kit.commit(resumed.claim)
    kit.finish(slow[1])
    assert ledger.flush(root).outcome == "waits"
    ledger.set_time(1_000_500)
    assert len(kit.resume(root).items) == 1


def test_what_is_said_to_a_session_before_its_first_run_comes_after_its_task(
    kit: Kit, ledger: Ledger
) -> None:
    root = kit.given(prompt="the task")
    ledger.enqueue(root, "and this", item_id="itm_00p")
    assert ledger.flush(root).outcome == "waits"
    first = kit.run(root)
    assert (first.run.cause, first.prompt) == ("start", "the task")
    assert kit.commit(first.claim).session_state == SessionState.IDLE
    assert kit.resume(root).texts == {"itm_00p": "and this"}


def test_a_deadline_comes_before_the_end_of_a_longer_window(kit: Kit, ledger: Ledger) -> None:
    """What came is not kept until the window closes; the timer is set for whichever is first."""
    rule = {"mode": "any", "window_ms": 60_000, "deadline_ms": 1_005_000}
    root, *children = kit.parent_of(*"ab", waiting={"": rule})
    ledger.set_time(1_001_000)
    kit.finish(children[0])
    flushed = ledger.flush(root)
    assert (flushed.outcome, flushed.detail) == ("waits", "1005000")
    ledger.set_time(1_005_000)
    assert ledger.sweep.due_timers(0) == [("flush", root)]
    resumed = kit.resume(root)
    assert (resumed.run.overdue, [i.child for i in resumed.items]) == (("",), children[:1])
    kit.commit(resumed.claim)
    kit.finish(children[1])
    assert ledger.flush(root).detail == "1065000"  # the window goes on after the deadline


def test_a_clock_that_goes_back_does_not_keep_a_window_open(kit: Kit, ledger: Ledger) -> None:
    root, *children = kit.parent_of(*"abc", waiting={"": {"mode": "any", "window_ms": 500}})
    ledger.set_time(90_000_000)
    kit.finish(children[0])
    assert ledger.flush(root).outcome == "waits"
    ledger.set_time(1_000_000)
    kit.finish(children[1])
    assert ledger.flush(root).detail == "1000500"
    ledger.set_time(1_000_500)
    assert len(kit.resume(root).items) == 2


# --- A parent with many children: what was looked at once and was not ready is not looked at again and again.


MANY = 40


def _fan(kit: Kit, root: str, waiting: dict[str, object], **groups: int) -> dict[str, list[str]]:
    """A parent that waits, and its children by group."""
    parent = kit.run(root)
    made = {g: [kit.delegate(parent, f"{g}{n}", group=g) for n in range(k)] for g, k in groups.items()}
    kit.commit(parent.claim, waiting=waiting)
    return made


def _looks(redis: redis_py.Redis) -> tuple[int, ...]:
    """How often one item was read, and how often a page of the queue."""
    stats = redis.info("commandstats")
    return tuple(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("hget", "zrange"))


def test_a_flush_that_finds_nothing_ready_costs_the_same_with_many_queued(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis
) -> None:
    """Each look reads only what came since the last one, whatever waits already."""
    root = kit.given()
    children = _fan(kit, root, {"": {"mode": "all"}}, g=MANY)["g"]
    read = []
    for child in children[:-1]:
        kit.finish(child)
        redis.config_resetstat()
        assert ledger.flush(root).outcome == "waits"
        read.append(_looks(redis))
    assert set(read[1:]) == {(2, 0)}
    kit.finish(children[-1])
    assert len(kit.resume(root).items) == MANY


def test_a_child_costs_few_commands(kit: Kit, redis: redis_py.Redis) -> None:
    """Those inside scripts, too, from its launch to its parent's resume."""
    root = kit.given()
    redis.config_resetstat()
    for child in _fan(kit, root, {"": {"mode": "all"}}, g=MANY)["g"]:
        kit.finish(child)
    kit.resume(root)
    assert sum(command["calls"] for command in redis.info("commandstats").values()) <= 126 * MANY


def test_something_urgent_overtakes_what_was_looked_at(kit: Kit, ledger: Ledger) -> None:
    """A question resumes the parent though its policy is not met, and what waited goes on waiting."""
    root = kit.given()
    children = _fan(kit, root, {"": {"mode": "all"}}, g=3)["g"]
    kit.finish(children[0])
    assert ledger.flush(root).outcome == "waits"
    ledger.enqueue(
        root, "which one?", item_id="itm_00" + "a" * 24, kind="query", priority="low", speaker=children[1]
    )
    asked: ClaimedRun = kit.resume(root)
    assert [item.kind for item in asked.items] == ["query"]
    kit.commit(asked.claim)
    assert ledger.flush(root).outcome == "waits"
    for child in children[1:]:
        kit.finish(child)
    assert [item.child for item in kit.resume(root).items] == children


def test_a_group_that_is_met_lets_go_what_was_looked_at(kit: Kit, ledger: Ledger) -> None:
    """The last of a group makes ready what came of it before, and nothing of another group."""
    root = kit.given()
    children = _fan(kit, root, {"": {"mode": "all"}, "a": {"mode": "all"}}, a=3, b=2)
    for child in (children["a"][0], children["b"][0], children["a"][1]):
        kit.finish(child)
        assert ledger.flush(root).outcome == "waits"
    kit.finish(children["a"][2])
    assert [item.child for item in kit.resume(root).items] == children["a"]


def test_a_policy_that_is_changed_is_judged_anew(kit: Kit, ledger: Ledger) -> None:
    """What waited under the old policy goes with the next run under the new one."""
    root = kit.given()
    children = _fan(kit, root, {"": {"mode": "all"}}, g=3)["g"]
    kit.finish(children[0])
    assert ledger.flush(root).outcome == "waits"
    ledger.enqueue(root, "go on", item_id="itm_00" + "b" * 24)
    told = kit.resume(root)
    kit.commit(told.claim, waiting={"": {"mode": "any"}})
    assert [item.child for item in kit.resume(root).items] == children[:1]
