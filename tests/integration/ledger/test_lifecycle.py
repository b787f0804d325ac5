"""What becomes of sessions, runs and callbacks, transition by transition, on a real server."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import redis as redis_py

from orchestrator.errors import ClaimLost, LimitExceeded, UnknownSession, WrongState
from orchestrator.ids import callback_id, child_session_id, new_claim_id
from orchestrator.ledger import (
    EndedRun,
    Ledger,
    Outcome,
    RetryLater,
    RunRef,
    RunState,
    SessionState,
    TreeLimits,
)
from orchestrator.redisdb import keys, ledger_keys

from .conftest import Play, envelope


def _item(ledger: Ledger, parent: str, child: str):
    found = ledger.item(parent, callback_id(child))
    assert found is not None
    return found


def test_a_start_sent_again_takes_its_agent_from_no_later_session(play: Play, ledger: Ledger) -> None:
    """Its answer was lost. A message that names the agent goes to the session which it was given last."""
    first, second = play.submit("first"), play.submit("second")
    play.start(first, entry="5-0")
    play.start(second, entry="6-0")
    play.start(first, entry="5-0")
    assert ledger.redis.hget(keys.conversation(0, "c"), "agent:lead") == second.encode()


def test_priority_comes_before_order_of_completion(play: Play) -> None:
    """A critical child overtakes a normal one that ended before it."""
    root, parent = play.begin()
    normal = play.delegate(parent, "n", priority="normal")
    critical = play.delegate(parent, "c", priority="critical")
    play.finish(normal)
    play.finish(critical)
    play.commit(parent.claim)
    assert [i.child for i in play.resume(root).items] == [critical, normal]


def test_one_resume_is_bounded_and_the_rest_follows(redis, play: Play) -> None:
    """By count and by bytes; nothing is left behind."""
    play.ledger = ledger = Ledger(redis, limits=TreeLimits(resume_max_items=2, resume_max_bytes=10))
    root, parent = play.begin()
    sizes = {play.delegate(parent, str(n)): size for n, size in enumerate([3, 3, 3, 9, 9, 30])}
    for child, size in sizes.items():
        play.finish(child, "x" * size)
    play.commit(parent.claim)
    portions = []
    while (flushed := ledger.flush(root)).dispatch:
        held = play.claim(flushed.dispatch)
        portions.append([sizes[i.child] for i in held.items])
        play.commit(held.claim)
    assert portions == [[3, 3], [3], [9], [9], [30]]
    assert play.balance(root) == (6, 6, 0, 0)


def test_a_run_whose_workers_are_lost_too_often_fails_and_its_parent_hears(
    play: Play, ledger: Ledger
) -> None:
    """The limit of lost workers is its own; attempts of the agent are not used up."""
    root, parent = play.begin()
    child = play.delegate(parent, "a")
    play.commit(parent.claim)
    dispatch = play.start(child)
    for lost in range(3):
        ledger.claim(dispatch.run, new_claim_id(), session_id=child, worker=f"w{lost}")
        lease = next(lease for lease in ledger.sweep.leases(0) if lease.session == child)
        if lost < 2:
            assert ledger.release(lease) == "queued"
        else:
            assert ledger.release(lease) == "ended"
    assert ledger.session(child).state == SessionState.FAILED
    resumed = play.resume(root)
    assert [(i.status, resumed.texts[i.id]) for i in resumed.items] == [
        ("failed", "its worker was lost 3 times")
    ]


def test_a_child_that_never_ran_can_be_stopped_and_owes_a_failure(play: Play, ledger: Ledger) -> None:
    """At once, with the reason as its text."""
    root, parent = play.begin()
    pending, queued = play.delegate(parent, "p"), play.delegate(parent, "q")
    dispatch = play.start(queued)
    play.commit(parent.claim)
    assert ledger.stop(pending, "not needed").outcome == "ended"
    assert ledger.stop(queued, "not needed").outcome == "ended"
    assert ledger.sweep.ready(0, ["reviewer"]) == {}
    assert ledger.claim(dispatch.run, new_claim_id(), session_id=queued, worker="w") is None
    resumed = play.resume(root)
    assert {(i.child, i.status, resumed.texts[i.id]) for i in resumed.items} == {
        (pending, "failed", "not needed"),
        (queued, "failed", "not needed"),
    }
    assert play.start(pending) is None


def test_a_running_session_is_asked_first_and_ended_by_force(play: Play, ledger: Ledger) -> None:
    """Its heartbeat learns of it; a lost lease then ends it instead of queueing it again."""
    root, held = play.begin()
    assert ledger.stop(root, "enough").outcome == "asked"
    assert ledger.renew(held.claim).stop == "enough"
    (lease,) = ledger.sweep.leases(0)
    assert ledger.release(lease) == "ended"
    assert ledger.session(root).state == SessionState.STOPPED
    assert ledger.stop(root, "again").outcome == "over"
    second = play.submit("second")
    play.run(second)
    assert ledger.stop(second, "now", force=True).outcome == "ended"


def test_a_user_who_resumes_by_hand_makes_the_session_busy(play: Play, ledger: Ledger) -> None:
    """The prompt is an item of the same queue; callbacks of the meantime wait for the next run."""
    root, parent = play.begin()
    child = play.delegate(parent, "a")
    play.commit(parent.claim)
    assert ledger.enqueue(root, "how is it going?", item_id="itm_00aa")
    assert not ledger.enqueue(root, "how is it going?", item_id="itm_00aa")
    by_hand = play.resume(root)
    assert (by_hand.run.cause, by_hand.texts) == ("user", {"itm_00aa": "how is it going?"})
    play.finish(child)
    assert ledger.flush(root).outcome == "busy"
    assert play.commit(by_hand.claim).session_state == SessionState.IDLE
    assert play.resume(root).run.cause == "callbacks"


def test_a_finished_session_may_be_resumed_and_owes_no_second_callback(play: Play, ledger: Ledger) -> None:
    """Later resumes by hand owe none."""
    root, parent = play.begin()
    child = play.delegate(parent, "a")
    play.commit(parent.claim)
    play.finish(child, "first")
    ledger.enqueue(child, "once more", item_id="itm_00bb")
    play.commit(play.resume(child).claim, "second")
    assert ledger.result(child) == (SessionState.FINISHED, "second")
    resumed = play.resume(root)
    assert list(resumed.texts.values()) == ["first"]
    play.commit(resumed.claim)
    assert play.balance(root) == (1, 1, 0, 0)


def test_a_quorum_resumes_when_it_is_there_or_out_of_reach(play: Play, ledger: Ledger) -> None:
    root, parent = play.begin()
    children = [play.delegate(parent, str(n)) for n in range(3)]
    play.commit(parent.claim, waiting={"": {"mode": "quorum", "k": 2}})
    play.finish(children[0])
    assert ledger.flush(root).outcome == "waits"
    play.finish(children[1])
    assert len(play.resume(root).items) == 2
    other, parent = play.begin("other")
    child = play.delegate(parent, "only")
    play.commit(parent.claim, waiting={"": {"mode": "quorum", "k": 2}})
    play.finish(child)
    assert len(play.resume(other).items) == 1


def test_a_quorum_that_is_said_anew_counts_what_comes_under_it(play: Play, ledger: Ledger) -> None:
    """What earlier runs had is not of it; what came while the run was at work, and was not in it, is."""
    root, held = play.begin()
    first = [play.delegate(held, f"first {n}") for n in range(3)]
    play.commit(held.claim, waiting={"": {"mode": "quorum", "k": 2}})
    play.finish(first[0])
    play.finish(first[1])
    held = play.resume(root)
    second = [play.delegate(held, f"second {n}") for n in range(3)]
    play.finish(first[2])
    play.commit(held.claim, waiting={"": {"mode": "quorum", "k": 3}})
    assert ledger.flush(root).outcome == "waits"
    play.finish(second[0])
    assert ledger.flush(root).outcome == "waits"
    play.finish(second[1])
    held = play.resume(root)
    assert [i.child for i in held.items] == [first[2], *second[:2]]
    play.commit(held.claim, waiting=held.session.waiting)
    play.finish(second[2])
    assert len(play.resume(root).items) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failure_that_is_ignored_makes_no_quorum(when: str, play: Play, ledger: Ledger) -> None:
    """Whether the child failed before its parent said what it waits for, or after."""
    root, held = play.begin()
    children = [play.delegate(held, str(n), on_failure="ignore") for n in range(4)]
    if when == "before":
        play.finish(children[0], "boom", status="failed")
    play.commit(held.claim, waiting={"": {"mode": "quorum", "k": 2}})
    if when == "after":
        play.finish(children[0], "boom", status="failed")
    play.finish(children[1])
    assert ledger.flush(root).outcome == "waits"
    play.finish(children[2])
    assert len(play.resume(root).items) == 2


def test_a_quorum_that_ignored_failures_have_put_out_of_reach_is_not_waited_for(
    play: Play, ledger: Ledger
) -> None:
    root, held = play.begin()
    children = [play.delegate(held, str(n), on_failure="ignore") for n in range(3)]
    play.commit(held.claim, waiting={"": {"mode": "quorum", "k": 3}})
    play.finish(children[0])
    assert ledger.flush(root).outcome == "waits"
    play.finish(children[1], "boom", status="failed")
    assert [i.child for i in play.resume(root).items] == children[:1]


def test_a_window_folds_callbacks_that_come_close_together(play: Play, ledger: Ledger) -> None:
    ledger.set_time(1_000_000)
    root, parent = play.begin()
    children = [play.delegate(parent, str(n)) for n in range(3)]
    play.commit(parent.claim, waiting={"": {"mode": "any", "window_ms": 500}})
    play.finish(children[0])
    assert ledger.flush(root).outcome == "waits"
    ledger.set_time(1_000_400)
    play.finish(children[1])
    assert ledger.flush(root).outcome == "waits"
    ledger.set_time(1_000_500)
    assert len(play.resume(root).items) == 2


def test_a_question_resumes_a_parent_that_waits_for_all_and_keeps_the_child_open(
    play: Play, ledger: Ledger
) -> None:
    """Policies govern completions only; a child with an open question is idle, not finished."""
    root, parent = play.begin()
    child = play.delegate(parent, "a")
    play.commit(parent.claim, waiting={"": {"mode": "all"}})
    asking = play.run(child)
    play.ask(asking, root, item="itm_00q1")
    assert play.commit(asking.claim).session_state == SessionState.IDLE
    asked = play.resume(root)
    assert [(i.kind, i.child) for i in asked.items] == [("query", child)]
    reply = {"kind": "reply", "priority": "high", "answers": "itm_00q1"}
    play.say(asked, child, "that one", item="itm_00r1", **reply)
    with pytest.raises(WrongState, match="answered"):
        play.say(asked, child, "or this", item="itm_00r2", **reply)
    play.commit(asked.claim)
    answered = play.resume(child)
    assert list(answered.texts.values()) == ["that one"]
    assert play.commit(answered.claim, "done").session_state == SessionState.FINISHED
    assert [i.kind for i in play.resume(root).items] == ["completion"]
    assert play.balance(root) == (1, 0, 1, 0)


def test_deleting_leaves_a_tombstone_with_the_counts(play: Play, ledger: Ledger) -> None:
    root, parent = play.begin()
    done, owed = play.delegate(parent, "d"), play.delegate(parent, "o")
    play.commit(parent.claim)
    play.finish(done)
    play.commit(play.resume(root).claim)
    assert ledger.stop(root, "deleted by the user", state="deleted").outcome == "ended"
    ledger.stop(owed, "parent deleted")
    assert ledger.finish_cleanup(root, seen_as=SessionState.DELETED)
    assert ledger.session(root).state == SessionState.DELETED
    assert play.balance(root) == (2, 1, 0, 1)
    assert [i.child for i in ledger.items(root)] == [owed]
    assert ledger.texts(root, ["prompt", "result"]) == {}
    with pytest.raises(WrongState):
        ledger.enqueue(root, "hello?", item_id="itm_00cc")


def test_what_a_parent_was_told_of_an_end_is_kept_once_and_outlives_what_the_child_says_later(
    redis, play: Play, ledger: Ledger
) -> None:
    """A user may resume a child whose end its parent has not looked at yet, and delete it."""
    parent = play.run(play.submit())
    child = play.delegate(parent, "a")
    play.commit(parent.claim)
    name = callback_id(child)
    held = play.run(child)
    below = play.delegate(held, "b")
    play.commit(held.claim, "not yet")
    assert ledger.texts(child, ["result"]) == {"result": "not yet"}
    play.finish(below)
    play.commit(play.resume(child).claim, "the first end")
    assert redis.hgetall(ledger_keys.bodies(parent.session.id)).keys() == {b"prompt", b"result"}
    assert redis.hget(ledger_keys.bodies(child), name) == b"the first end"
    assert not redis.hexists(ledger_keys.bodies(child), "result")
    assert ledger.result(child) == (SessionState.FINISHED, "the first end")
    assert not ledger.sweep.restore_text(child, "another")
    ledger.enqueue(child, "once more", item_id="itm_00aa")
    play.commit(play.resume(child).claim, "the second end")
    assert ledger.result(child) == (SessionState.FINISHED, "the second end")
    assert ledger.texts(parent.session.id, [name]) == {name: "the first end"}
    assert ledger.stop(child, "gone", state="deleted").outcome == "ended"
    assert ledger.finish_cleanup(child, seen_as=SessionState.DELETED)
    assert not redis.exists(ledger_keys.bodies(child))
    assert play.resume(parent.session.id).texts == {name: "the first end"}


def test_a_blocking_call_gets_what_its_child_said(redis, play: Play, ledger: Ledger) -> None:
    """It takes the item into its run, before and after the child is deleted."""
    parent = play.run(play.submit())
    child = play.delegate(parent, "a")
    play.finish(child, "the end")
    for _ in range(2):
        taken = ledger.claim_item(parent.claim, callback_id(child))
        assert taken[1] == "the end"
        ledger.stop(child, "gone", state="deleted")
        assert ledger.finish_cleanup(child, seen_as=SessionState.DELETED)


def test_the_text_of_a_deleted_session_is_not_restored(play: Play, ledger: Ledger) -> None:
    """A doctor may have looked before the session was deleted: its parent has what it was told of its end."""
    parent = play.run(play.submit())
    child = play.delegate(parent, "a")
    play.finish(child, "a secret")
    assert ledger.stop(child, "gone", state="deleted").outcome == "ended"
    assert ledger.finish_cleanup(child, seen_as=SessionState.DELETED)
    assert not ledger.sweep.restore_text(child, "a secret")
    assert ledger.texts(child, ["result"]) == {}
    assert ledger.texts(parent.session.id, [callback_id(child)]) == {callback_id(child): "a secret"}


def test_a_second_try_keeps_the_children_that_stand_behind_a_refused_launch(redis, play: Play) -> None:
    play.ledger = ledger = Ledger(redis, limits=TreeLimits(max_children=3))
    held = play.run(play.submit())
    made = ledger.delegate_all(held.claim, [play.launch(held, name) for name in "abc"])
    assert [done.created for done in made] == [True, True, True]
    assert isinstance(play.commit(held.claim, "oops", status="failed", attempts=2), RetryLater)
    again = play.claim(RunRef(run=held.run.id, session=held.session.id, agent="lead", cause="start"))
    with pytest.raises(LimitExceeded, match="max_children = 3"):
        ledger.delegate_all(again.claim, [play.launch(again, name) for name in "axbc"])
    play.commit(again.claim)
    assert play.balance(held.session.id) == (3, 0, 3, 0)


@pytest.mark.parametrize(
    "damaged", [ledger_keys.items, ledger_keys.effects, keys.totals, ledger_keys.tree, ledger_keys.bodies]
)
def test_launches_that_cannot_be_written_down_are_not_published(redis, play: Play, damaged: Any) -> None:
    held = play.run(play.submit())
    root, run = held.session.id, held.run.id
    launches = [play.launch(held, name) for name in "abc"]
    of = {ledger_keys.effects: run, keys.totals: 0, ledger_keys.bodies: launches[2].child_id}.get(
        damaged, root
    )
    redis.delete(damaged(of))
    redis.set(damaged(of), "no hash")
    stream = keys.messages(0, "task-delegation", "high")
    before = redis.xlen(stream)
    with pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        play.ledger.delegate_all(held.claim, launches)
    assert (redis.xlen(stream), play.ledger.session(root).children) == (before, 0)


def test_limits_refuse_new_launches_before_anything_is_made(redis, play: Play) -> None:
    play.ledger = Ledger(redis, limits=TreeLimits(max_children=2, max_depth=1))
    held = play.run(play.submit())
    child = play.delegate(held, "1")
    play.delegate(held, "2")
    with pytest.raises(LimitExceeded, match="max_children = 2"):
        play.delegate(held, "3")
    with pytest.raises(LimitExceeded, match="max_depth = 1"):
        play.delegate(play.run(child), "1")
    assert play.balance(held.claim.session) == (2, 0, 2, 0)


def test_a_tree_that_has_had_its_runs_begins_nothing_new_and_ends_what_it_has(redis, play: Play) -> None:
    """Launches and prompts are refused, in every session of it; callbacks and replies never."""
    play.ledger = ledger = Ledger(redis, limits=TreeLimits(max_tree_runs=4))
    root, held = play.begin()
    child = play.run(play.delegate(held, "1"))
    play.ask(child, root)
    play.commit(child.claim)
    play.commit(held.claim)
    held = play.resume(root)
    ledger.enqueue(root, "go on", item_id="itm_00first")
    play.commit(held.claim)
    held = play.resume(root)
    with pytest.raises(LimitExceeded, match="max_runs_per_tree = 4 reached"):
        play.delegate(held, "2")
    for session in (root, child.session.id):
        with pytest.raises(LimitExceeded, match="max_runs_per_tree = 4 reached"):
            ledger.enqueue(session, "and more", item_id="itm_00second")
    play.commit(held.claim)
    ledger.enqueue(child.session.id, "!", item_id="rep_00q", kind="reply", priority="high", answers="itm_00q")
    play.commit(play.resume(child.session.id).claim)
    play.commit(play.resume(root).claim)
    assert ledger.session(root).state == SessionState.FINISHED
    assert play.balance(root) == (1, 1, 0, 0)


def test_the_sweep_looks_at_a_run_that_nobody_claimed_ever_more_rarely(play: Play, ledger: Ledger) -> None:
    ledger.set_time(1_000_000)
    dispatch = play.start(play.submit())
    assert ledger.sweep.undispatched(0) == []
    ledger.set_time(1_010_000)
    assert ledger.sweep.undispatched(0) == [dispatch.run]
    assert ledger.sweep.make_ready(dispatch.run) == dispatch
    ledger.set_time(1_029_999)
    assert ledger.sweep.undispatched(0) == []
    ledger.set_time(1_030_000)
    assert ledger.sweep.undispatched(0) == [dispatch.run]
    play.claim(dispatch)
    assert ledger.sweep.undispatched(0) == []
    assert ledger.sweep.make_ready(dispatch.run) is None


def test_what_is_not_there_is_named(ledger: Ledger) -> None:
    with pytest.raises(UnknownSession, match="ses_00"):
        ledger.session("ses_00" + "a" * 24)
    with pytest.raises(UnknownSession):
        ledger.session("nonsense")
    assert ledger.stop(child_session_id("ses_00x", "y"), "why").outcome == "unknown"


def test_children_of_one_millisecond_are_listed_in_the_order_of_their_launches(
    play: Play, ledger: Ledger
) -> None:
    ledger.set_time(1_800_000_000_000)
    root, parent = play.begin()
    children = [play.delegate(parent, f"e{number}") for number in range(30)]
    assert [session.id for session in ledger.tree(root)] == [root, *children]
    ledger.set_time(1_799_999_999_000)  # a clock that is set back changes nothing about it
    children.append(play.delegate(parent, "late"))
    assert [session.id for session in ledger.tree(root)] == [root, *children]


@pytest.mark.parametrize("damaged", ["items", "bodies", "running", "dispatch"])
def test_a_claim_of_what_is_of_another_type_changes_nothing(
    play: Play, ledger: Ledger, redis: redis_py.Redis, damaged: str
) -> None:
    """The run stays queued, and is claimed once the damage is fixed."""
    play.run(play.submit("of another tree"))
    root, parent = play.begin()
    child = play.delegate(parent, "a")
    play.commit(parent.claim)
    play.finish(child)
    dispatch = ledger.flush(root).dispatch
    assert dispatch is not None
    places = {
        "items": ledger_keys.items(root),
        "bodies": ledger_keys.bodies(root),
        "running": ledger_keys.running(0),
        "dispatch": ledger_keys.queued(0),
    }
    key = places[damaged]
    whole = redis.dump(key)
    redis.set(key, "of another type")
    untouched = [ledger_keys.run(dispatch.run), ledger_keys.session(root)]
    before = [redis.dump(key) for key in untouched]
    with pytest.raises(redis_py.ResponseError):
        ledger.claim(dispatch.run, "one", session_id=root, worker="w1")
    assert [redis.dump(key) for key in untouched] == before
    redis.restore(key, 0, whole, replace=True)
    held = ledger.claim(dispatch.run, "two", session_id=root, worker="w1")
    assert [item.child for item in held.items] == [child]
    assert (held.run.attempt, held.run.worker, held.session.state) == (1, "w1", SessionState.RUNNING)
    assert ledger.run(dispatch.run) == held.run
    assert ledger.session(root) == held.session


def test_a_run_that_is_not_its_sessions_present_one_cannot_be_claimed(play: Play, ledger: Ledger) -> None:
    """Its tree has expired and is about to be removed; the message of a run that nobody began comes in that moment."""
    root, parent = play.begin()
    child = play.delegate(parent, "a", callback=False)
    dispatch = play.start(child)
    play.commit(parent.claim)
    assert ledger.sweep.close_tree(ledger.tree(root))
    assert ledger.run(dispatch.run).state == RunState.QUEUED
    assert ledger.claim(dispatch.run, "one", session_id=child, worker="w1") is None
    assert ledger.session(child).state == SessionState.DELETED
    assert ledger.sweep.leases(0) == []


def test_a_parent_keeps_what_its_child_told_it_first(play: Play, ledger: Ledger) -> None:
    """A child that a user resumes after its end tells its parent nothing more, whatever becomes of it."""
    root, parent = play.begin()
    child = play.delegate(parent, "a", callback=False)
    play.finish(child, "well done")
    told = _item(ledger, root, child)
    ledger.enqueue(child, "once more", item_id="itm_00x")
    play.commit(play.resume(child).claim, "no luck", status="failed")
    assert ledger.session(child).state == SessionState.FAILED
    assert _item(ledger, root, child) == told
    assert told.status == "completed"


def test_every_launch_of_a_batch_is_published_and_knows_its_place(
    play: Play, ledger: Ledger, redis: redis_py.Redis
) -> None:
    _, parent = play.begin()
    launches = [
        play.launch(parent, str(n), envelope=envelope(text=f"<launch n='{n}'/>".encode())) for n in range(5)
    ]
    made = ledger.delegate_all(parent.claim, launches)
    assert [one.child for one in made] == [launch.child_id for launch in launches]
    stream = keys.messages(0, "task-delegation", "high")
    for launch in launches:
        entry = ledger.session(launch.child_id).entry.rpartition(":")[2]
        ((_, fields),) = redis.xrange(stream, entry, entry)
        assert fields[b"envelope"] == launch.envelope.data
    assert redis.hget(keys.totals(0), "published:task-delegation:high") == b"6"


def test_an_item_is_taken_under_the_runs_own_claim_only(play: Play, ledger: Ledger) -> None:
    """Whoever lost the run takes nothing out of the queue that its new holder is to have."""
    held = play.run(play.submit())
    ledger.enqueue(held.session.id, "words", item_id="itm_00words")
    with pytest.raises(ClaimLost):
        ledger.claim_item(dataclasses.replace(held.claim, claim=new_claim_id()), "itm_00words")
    assert (ledger.claim_item(held.claim, "itm_00words") or ("", ""))[1] == "words"


def test_a_run_whose_effect_the_server_lost_neither_waits_nor_ends(play: Play, ledger: Ledger, redis) -> None:
    """A Redis that starts again may have lost its last second: the child that the holder was told of, and nothing else."""
    held = play.run(play.submit())
    before = {key: redis.dump(key) for key in redis.keys("*")}
    play.delegate(held, "one")
    redis.flushdb()
    for key, value in before.items():
        redis.restore(key, 0, value)
    outcome = Outcome(status="completed", text="done", last_effect="one")
    with pytest.raises(ClaimLost):
        ledger.claim_item(held.claim, "itm_00child", waits="wait", last_effect="one")
    with pytest.raises(ClaimLost):
        ledger.commit(EndedRun(held.claim, outcome, make_envelope=lambda: envelope("task-completion")))
    play.delegate(held, "one")
    ledger.commit(EndedRun(held.claim, outcome, make_envelope=lambda: envelope("task-completion")))
    assert play.balance(held.claim.session) == (1, 0, 1, 0)
