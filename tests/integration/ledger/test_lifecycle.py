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
    RunState,
    SessionState,
    TreeLimits,
)
from orchestrator.redisdb import keys, ledger_keys
from tests.kit import Kit, carried


def test_a_start_sent_again_takes_its_agent_from_no_later_session(kit: Kit, ledger: Ledger) -> None:
    """Its answer was lost. A message that names the agent goes to the session which it was given last."""
    first, second = kit.given("first"), kit.given("second")
    kit.start(first, entry="5-0")
    kit.start(second, entry="6-0")
    kit.start(first, entry="5-0")
    assert ledger.redis.hget(keys.conversation(0, "c"), "agent:lead") == second.encode()


def test_priority_comes_before_order_of_completion(kit: Kit) -> None:
    """A critical child overtakes a normal one that ended before it."""
    root, parent = kit.given_run()
    normal = kit.delegate(parent, "n", priority="normal")
    critical = kit.delegate(parent, "c", priority="critical")
    kit.finish(normal)
    kit.finish(critical)
    kit.commit(parent.claim)
    assert [i.child for i in kit.resume(root).items] == [critical, normal]


def test_one_resume_is_bounded_and_the_rest_follows(redis, kit: Kit) -> None:
    """By count and by bytes; nothing is left behind."""
    kit.ledger = ledger = Ledger(redis, limits=TreeLimits(resume_max_items=2, resume_max_bytes=10))
    root, *children = kit.parent_of(*"abcdef")
    sizes = dict(zip(children, (3, 3, 3, 9, 9, 30), strict=True))
    for child, size in sizes.items():
        kit.finish(child, "x" * size)
    portions = []
    while (flushed := ledger.flush(root)).dispatch:
        held = kit.claim(flushed.dispatch)
        portions.append([sizes[i.child] for i in held.items])
        kit.commit(held.claim)
    assert portions == [[3, 3], [3], [9], [9], [30]]
    assert kit.balance(root) == (6, 6, 0, 0)


def test_a_run_whose_workers_are_lost_too_often_fails_and_its_parent_hears(kit: Kit, ledger: Ledger) -> None:
    """The limit of lost workers is its own; attempts of the agent are not used up."""
    root, child = kit.parent_of("a")
    kit.start(child)
    for becomes in ("queued", "queued", "ended"):
        kit.claim(child)
        assert kit.crash(child) == becomes
    assert ledger.session(child).state == SessionState.FAILED
    resumed = kit.resume(root)
    assert [(i.status, resumed.texts[i.id]) for i in resumed.items] == [
        ("failed", "its worker was lost 3 times")
    ]


def test_a_child_that_never_ran_can_be_stopped_and_owes_a_failure(kit: Kit, ledger: Ledger) -> None:
    """At once, with the reason as its text."""
    root, pending, queued = kit.parent_of("p", "q")
    dispatch = kit.start(queued)
    assert ledger.stop(pending, "not needed").outcome == "ended"
    assert ledger.stop(queued, "not needed").outcome == "ended"
    assert ledger.sweep.ready(0, ["reviewer"]) == {}
    assert ledger.claim(dispatch.run, new_claim_id(), session_id=queued, worker="w") is None
    resumed = kit.resume(root)
    assert {(i.child, i.status, resumed.texts[i.id]) for i in resumed.items} == {
        (pending, "failed", "not needed"),
        (queued, "failed", "not needed"),
    }
    assert kit.start(pending) is None


def test_a_running_session_is_asked_first_and_ended_by_force(kit: Kit, ledger: Ledger) -> None:
    """Its heartbeat learns of it; a lost lease then ends it instead of queueing it again."""
    root, held = kit.given_run()
    assert ledger.stop(root, "enough").outcome == "asked"
    assert ledger.renew(held.claim).stop == "enough"
    assert kit.crash(root) == "ended"
    assert ledger.session(root).state == SessionState.STOPPED
    assert ledger.stop(root, "again").outcome == "over"
    second, _ = kit.given_run("second")
    assert ledger.stop(second, "now", force=True).outcome == "ended"


def test_a_user_who_resumes_by_hand_makes_the_session_busy(kit: Kit, ledger: Ledger) -> None:
    """The prompt is an item of the same queue; callbacks of the meantime wait for the next run."""
    root, child = kit.parent_of("a")
    assert ledger.enqueue(root, "how is it going?", item_id="itm_00aa")
    assert not ledger.enqueue(root, "how is it going?", item_id="itm_00aa")
    by_hand = kit.resume(root)
    assert (by_hand.run.cause, by_hand.texts) == ("user", {"itm_00aa": "how is it going?"})
    kit.finish(child)
    assert ledger.flush(root).outcome == "busy"
    assert kit.commit(by_hand.claim).session_state == SessionState.IDLE
    assert kit.resume(root).run.cause == "callbacks"


def test_a_finished_session_may_be_resumed_and_owes_no_second_callback(kit: Kit, ledger: Ledger) -> None:
    """Later resumes by hand owe none."""
    root, child = kit.parent_of("a")
    kit.finish(child, "first")
    ledger.enqueue(child, "once more", item_id="itm_00bb")
    kit.commit(kit.resume(child).claim, "second")
    assert ledger.result(child) == (SessionState.FINISHED, "second")
    resumed = kit.resume(root)
    assert list(resumed.texts.values()) == ["first"]
    kit.commit(resumed.claim)
    assert kit.balance(root) == (1, 1, 0, 0)


def test_a_quorum_resumes_when_it_is_there_or_out_of_reach(kit: Kit, ledger: Ledger) -> None:
    root, *children = kit.parent_of(*"abc", waiting={"": {"mode": "quorum", "k": 2}})
    kit.finish(children[0])
    assert ledger.flush(root).outcome == "waits"
    kit.finish(children[1])
    assert len(kit.resume(root).items) == 2
    other, child = kit.parent_of("only", seed="other", waiting={"": {"mode": "quorum", "k": 2}})
    kit.finish(child)
    assert len(kit.resume(other).items) == 1


def test_a_quorum_that_is_said_anew_counts_what_comes_under_it(kit: Kit, ledger: Ledger) -> None:
    """What earlier runs had is not of it; what came while the run was at work, and was not in it, is."""
    root, *first = kit.parent_of(*"abc", waiting={"": {"mode": "quorum", "k": 2}})
    kit.finish(first[0])
    kit.finish(first[1])
    held = kit.resume(root)
    second = [kit.delegate(held, f"second {n}") for n in range(3)]
    kit.finish(first[2])
    kit.commit(held.claim, waiting={"": {"mode": "quorum", "k": 3}})
    assert ledger.flush(root).outcome == "waits"
    kit.finish(second[0])
    assert ledger.flush(root).outcome == "waits"
    kit.finish(second[1])
    held = kit.resume(root)
    assert [i.child for i in held.items] == [first[2], *second[:2]]
    kit.commit(held.claim, waiting=held.session.waiting)
    kit.finish(second[2])
    assert len(kit.resume(root).items) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failure_that_is_ignored_makes_no_quorum(when: str, kit: Kit, ledger: Ledger) -> None:
    """Whether the child failed before its parent said what it waits for, or after."""
    root, held = kit.given_run()
    children = [kit.delegate(held, str(n), on_failure="ignore") for n in range(4)]
    if when == "before":
        kit.finish(children[0], "boom", status="failed")
    kit.commit(held.claim, waiting={"": {"mode": "quorum", "k": 2}})
    if when == "after":
        kit.finish(children[0], "boom", status="failed")
    kit.finish(children[1])
    assert ledger.flush(root).outcome == "waits"
    kit.finish(children[2])
    assert len(kit.resume(root).items) == 2


def test_a_quorum_that_ignored_failures_have_put_out_of_reach_is_not_waited_for(
    kit: Kit, ledger: Ledger
) -> None:
    root, *children = kit.parent_of(*"abc", waiting={"": {"mode": "quorum", "k": 3}}, on_failure="ignore")
    kit.finish(children[0])
    assert ledger.flush(root).outcome == "waits"
    kit.finish(children[1], "boom", status="failed")
    assert [i.child for i in kit.resume(root).items] == children[:1]


def test_a_window_folds_callbacks_that_come_close_together(kit: Kit, ledger: Ledger) -> None:
    ledger.set_time(1_000_000)
    root, *children = kit.parent_of(*"abc", waiting={"": {"mode": "any", "window_ms": 500}})
    kit.finish(children[0])
    assert ledger.flush(root).outcome == "waits"
    ledger.set_time(1_000_400)
    kit.finish(children[1])
    assert ledger.flush(root).outcome == "waits"
    ledger.set_time(1_000_500)
    assert len(kit.resume(root).items) == 2


def test_a_question_resumes_a_parent_that_waits_for_all_and_keeps_the_child_open(kit: Kit) -> None:
    """Policies govern completions only; a child with an open question is idle, not finished."""
    root, child = kit.parent_of("a", waiting={"": {"mode": "all"}})
    asking = kit.run(child)
    kit.ask(asking, root, item="itm_00q1")
    assert kit.commit(asking.claim).session_state == SessionState.IDLE
    asked = kit.resume(root)
    assert [(i.kind, i.child) for i in asked.items] == [("query", child)]
    reply = {"kind": "reply", "priority": "high", "answers": "itm_00q1"}
    kit.say(asked, child, "that one", item="itm_00r1", **reply)
    with pytest.raises(WrongState, match="answered"):
        kit.say(asked, child, "or this", item="itm_00r2", **reply)
    kit.commit(asked.claim)
    answered = kit.resume(child)
    assert list(answered.texts.values()) == ["that one"]
    assert kit.commit(answered.claim, "done").session_state == SessionState.FINISHED
    assert [i.kind for i in kit.resume(root).items] == ["completion"]
    assert kit.balance(root) == (1, 0, 1, 0)


def test_deleting_leaves_a_tombstone_with_the_counts(kit: Kit, ledger: Ledger) -> None:
    root, done, owed = kit.parent_of("d", "o")
    kit.finish(done)
    kit.commit(kit.resume(root).claim)
    assert ledger.stop(root, "deleted by the user", state="deleted").outcome == "ended"
    ledger.stop(owed, "parent deleted")
    assert ledger.finish_cleanup(root, seen_as=SessionState.DELETED)
    assert ledger.session(root).state == SessionState.DELETED
    assert kit.balance(root) == (2, 1, 0, 1)
    assert [i.child for i in ledger.items(root)] == [owed]
    assert ledger.texts(root, ["prompt", "result"]) == {}
    with pytest.raises(WrongState):
        ledger.enqueue(root, "hello?", item_id="itm_00cc")


def test_what_a_parent_was_told_of_an_end_is_kept_once_and_outlives_what_the_child_says_later(
    redis, kit: Kit, ledger: Ledger
) -> None:
    """A user may resume a child whose end its parent has not looked at yet, and delete it."""
    root, child = kit.parent_of("a")
    name = callback_id(child)
    held = kit.run(child)
    below = kit.delegate(held, "b")
    kit.commit(held.claim, "not yet")
    assert ledger.texts(child, ["result"]) == {"result": "not yet"}
    kit.finish(below)
    kit.commit(kit.resume(child).claim, "the first end")
    assert redis.hgetall(ledger_keys.bodies(root)).keys() == {b"prompt", b"result"}
    assert redis.hget(ledger_keys.bodies(child), name) == b"the first end"
    assert not redis.hexists(ledger_keys.bodies(child), "result")
    assert ledger.result(child) == (SessionState.FINISHED, "the first end")
    assert not ledger.sweep.restore_text(child, "another")
    ledger.enqueue(child, "once more", item_id="itm_00aa")
    kit.commit(kit.resume(child).claim, "the second end")
    assert ledger.result(child) == (SessionState.FINISHED, "the second end")
    assert ledger.texts(root, [name]) == {name: "the first end"}
    assert ledger.stop(child, "gone", state="deleted").outcome == "ended"
    assert ledger.finish_cleanup(child, seen_as=SessionState.DELETED)
    assert not redis.exists(ledger_keys.bodies(child))
    assert kit.resume(root).texts == {name: "the first end"}


def test_a_blocking_call_gets_what_its_child_said(kit: Kit, ledger: Ledger) -> None:
    """It takes the item into its run, before and after the child is deleted."""
    parent = kit.run(kit.given())
    child = kit.delegate(parent, "a")
    kit.finish(child, "the end")
    for _ in range(2):
        taken = ledger.claim_item(parent.claim, callback_id(child))
        assert taken[1] == "the end"
        ledger.stop(child, "gone", state="deleted")
        assert ledger.finish_cleanup(child, seen_as=SessionState.DELETED)


def test_the_text_of_a_deleted_session_is_not_restored(kit: Kit, ledger: Ledger) -> None:
    """A doctor may have looked before the session was deleted: its parent has what it was told of its end."""
    parent = kit.run(kit.given())
    child = kit.delegate(parent, "a")
    kit.finish(child, "a secret")
    assert ledger.stop(child, "gone", state="deleted").outcome == "ended"
    assert ledger.finish_cleanup(child, seen_as=SessionState.DELETED)
    assert not ledger.sweep.restore_text(child, "a secret")
    assert ledger.texts(child, ["result"]) == {}
    assert ledger.texts(parent.session.id, [callback_id(child)]) == {callback_id(child): "a secret"}


def test_a_second_try_keeps_the_children_that_stand_behind_a_refused_launch(redis, kit: Kit) -> None:
    kit.ledger = ledger = Ledger(redis, limits=TreeLimits(max_children=3))
    held = kit.run(kit.given())
    made = ledger.delegate_all(held.claim, [kit.launch(held, name) for name in "abc"])
    assert [done.created for done in made] == [True, True, True]
    assert isinstance(kit.commit(held.claim, "oops", status="failed", attempts=2), RetryLater)
    again = kit.claim(held.session.id)
    with pytest.raises(LimitExceeded, match="max_children = 3"):
        ledger.delegate_all(again.claim, [kit.launch(again, name) for name in "axbc"])
    kit.commit(again.claim)
    assert kit.balance(held.session.id) == (3, 0, 3, 0)


@pytest.mark.parametrize(
    "damaged", [ledger_keys.items, ledger_keys.effects, keys.totals, ledger_keys.tree, ledger_keys.bodies]
)
def test_launches_that_cannot_be_written_down_are_not_published(redis, kit: Kit, damaged: Any) -> None:
    held = kit.run(kit.given())
    root, run = held.session.id, held.run.id
    launches = [kit.launch(held, name) for name in "abc"]
    of = {ledger_keys.effects: run, keys.totals: 0, ledger_keys.bodies: launches[2].child_id}.get(
        damaged, root
    )
    redis.delete(damaged(of))
    redis.set(damaged(of), "no hash")
    stream = keys.messages(0, "task-delegation", "high")
    before = redis.xlen(stream)
    with pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        kit.ledger.delegate_all(held.claim, launches)
    assert (redis.xlen(stream), kit.ledger.session(root).children) == (before, 0)


def test_limits_refuse_new_launches_before_anything_is_made(redis, kit: Kit) -> None:
    kit.ledger = Ledger(redis, limits=TreeLimits(max_children=2, max_depth=1))
    held = kit.run(kit.given())
    child = kit.delegate(held, "1")
    kit.delegate(held, "2")
    with pytest.raises(LimitExceeded, match="max_children = 2"):
        kit.delegate(held, "3")
    with pytest.raises(LimitExceeded, match="max_depth = 1"):
        kit.delegate(kit.run(child), "1")
    assert kit.balance(held.claim.session) == (2, 0, 2, 0)


def test_a_tree_that_has_had_its_runs_begins_nothing_new_and_ends_what_it_has(redis, kit: Kit) -> None:
    """Launches and prompts are refused, in every session of it; callbacks and replies never."""
    kit.ledger = ledger = Ledger(redis, limits=TreeLimits(max_tree_runs=4))
    root, held = kit.given_run()
    child = kit.run(kit.delegate(held, "1"))
    kit.ask(child, root)
    kit.commit(child.claim)
    kit.commit(held.claim)
    held = kit.resume(root)
    ledger.enqueue(root, "go on", item_id="itm_00first")
    kit.commit(held.claim)
    held = kit.resume(root)
    with pytest.raises(LimitExceeded, match="max_runs_per_tree = 4 reached"):
        kit.delegate(held, "2")
    for session in (root, child.session.id):
        with pytest.raises(LimitExceeded, match="max_runs_per_tree = 4 reached"):
            ledger.enqueue(session, "and more", item_id="itm_00second")
    kit.commit(held.claim)
    ledger.enqueue(child.session.id, "!", item_id="rep_00q", kind="reply", priority="high", answers="itm_00q")
    kit.commit(kit.resume(child.session.id).claim)
    kit.commit(kit.resume(root).claim)
    assert ledger.session(root).state == SessionState.FINISHED
    assert kit.balance(root) == (1, 1, 0, 0)


def test_the_sweep_looks_at_a_run_that_nobody_claimed_ever_more_rarely(kit: Kit, ledger: Ledger) -> None:
    ledger.set_time(1_000_000)
    dispatch = kit.start(kit.given())
    assert ledger.sweep.undispatched(0) == []
    ledger.set_time(1_010_000)
    assert ledger.sweep.undispatched(0) == [dispatch.run]
    assert ledger.sweep.make_ready(dispatch.run) == dispatch
    ledger.set_time(1_029_999)
    assert ledger.sweep.undispatched(0) == []
    ledger.set_time(1_030_000)
    assert ledger.sweep.undispatched(0) == [dispatch.run]
    kit.claim(dispatch)
    assert ledger.sweep.undispatched(0) == []
    assert ledger.sweep.make_ready(dispatch.run) is None


def test_what_is_not_there_is_named(ledger: Ledger) -> None:
    with pytest.raises(UnknownSession, match="ses_00"):
        ledger.session("ses_00" + "a" * 24)
    with pytest.raises(UnknownSession):
        ledger.session("nonsense")
    assert ledger.stop(child_session_id("ses_00x", "y"), "why").outcome == "unknown"


def test_children_of_one_millisecond_are_listed_in_the_order_of_their_launches(
    kit: Kit, ledger: Ledger
) -> None:
    ledger.set_time(1_800_000_000_000)
    root, parent = kit.given_run()
    children = [kit.delegate(parent, f"e{number}") for number in range(30)]
    assert [session.id for session in ledger.tree(root)] == [root, *children]
    ledger.set_time(1_799_999_999_000)  # a clock that is set back changes nothing about it
    children.append(kit.delegate(parent, "late"))
    assert [session.id for session in ledger.tree(root)] == [root, *children]


@pytest.mark.parametrize("damaged", ["items", "bodies", "running", "dispatch"])
def test_a_claim_of_what_is_of_another_type_changes_nothing(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis, damaged: str
) -> None:
    """The run stays queued, and is claimed once the damage is fixed."""
    kit.run(kit.given("of another tree"))
    root, child = kit.parent_of("a")
    kit.finish(child)
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


def test_a_run_that_is_not_its_sessions_present_one_cannot_be_claimed(kit: Kit, ledger: Ledger) -> None:
    """Its tree has expired and is about to be removed; the message of a run that nobody began comes in that moment."""
    root, child = kit.parent_of("a", callback=False)
    dispatch = kit.start(child)
    assert ledger.sweep.close_tree(ledger.tree(root))
    assert ledger.run(dispatch.run).state == RunState.QUEUED
    assert ledger.claim(dispatch.run, "one", session_id=child, worker="w1") is None
    assert ledger.session(child).state == SessionState.DELETED
    assert ledger.sweep.leases(0) == []


def test_a_parent_keeps_what_its_child_told_it_first(kit: Kit, ledger: Ledger) -> None:
    """A child that a user resumes after its end tells its parent nothing more, whatever becomes of it."""
    root, parent = kit.given_run()
    child = kit.delegate(parent, "a", callback=False)
    kit.finish(child, "well done")
    told = ledger.item(root, callback_id(child))
    assert told is not None
    ledger.enqueue(child, "once more", item_id="itm_00x")
    kit.commit(kit.resume(child).claim, "no luck", status="failed")
    assert ledger.session(child).state == SessionState.FAILED
    assert ledger.item(root, callback_id(child)) == told
    assert told.status == "completed"


def test_every_launch_of_a_batch_is_published_and_knows_its_place(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis
) -> None:
    _, parent = kit.given_run()
    launches = [
        kit.launch(parent, str(n), envelope=carried(text=f"<launch n='{n}'/>".encode())) for n in range(5)
    ]
    made = ledger.delegate_all(parent.claim, launches)
    assert [one.child for one in made] == [launch.child_id for launch in launches]
    stream = keys.messages(0, "task-delegation", "high")
    for launch in launches:
        entry = ledger.session(launch.child_id).entry.rpartition(":")[2]
        ((_, fields),) = redis.xrange(stream, entry, entry)
        assert fields[b"envelope"] == launch.envelope.data
    assert redis.hget(keys.totals(0), "published:task-delegation:high") == b"6"


def test_an_item_is_taken_under_the_runs_own_claim_only(kit: Kit, ledger: Ledger) -> None:
    """Whoever lost the run takes nothing out of the queue that its new holder is to have."""
    held = kit.run(kit.given())
    ledger.enqueue(held.session.id, "words", item_id="itm_00words")
    with pytest.raises(ClaimLost):
        ledger.claim_item(dataclasses.replace(held.claim, claim=new_claim_id()), "itm_00words")
    assert (ledger.claim_item(held.claim, "itm_00words") or ("", ""))[1] == "words"


def test_a_run_whose_effect_the_server_lost_neither_waits_nor_ends(kit: Kit, ledger: Ledger, redis) -> None:
    """A Redis that starts again may have lost its last second: the child that the holder was told of, and nothing else."""
    held = kit.run(kit.given())
    before = {key: redis.dump(key) for key in redis.keys("*")}
    kit.delegate(held, "one")
    redis.flushdb()
    for key, value in before.items():
        redis.restore(key, 0, value)
    outcome = Outcome(status="completed", text="done", last_effect="one")
    with pytest.raises(ClaimLost):
        ledger.claim_item(held.claim, "itm_00child", waits="wait", last_effect="one")
    with pytest.raises(ClaimLost):
        ledger.commit(EndedRun(held.claim, outcome, make_envelope=lambda: carried("task-completion")))
    kit.delegate(held, "one")
    ledger.commit(EndedRun(held.claim, outcome, make_envelope=lambda: carried("task-completion")))
    assert kit.balance(held.claim.session) == (1, 0, 1, 0)


def test_an_effect_of_one_key_is_recorded_and_published_once(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis
) -> None:
    """A later try of a run is answered with what the first one recorded, and nobody hears it twice."""
    held = kit.run(kit.given())
    said = [
        ledger.effect(held.claim, effect="say", envelope=carried("status-update", "low"), value=value)
        for value in ("first", "again")
    ]
    assert said == ["first", "first"]
    assert redis.xlen(keys.messages(0, "status-update", "low")) == 1
