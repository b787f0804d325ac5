"""Two things that happen in the same moment, in the order in which nobody expects them."""

from __future__ import annotations

from typing import Literal

import pytest
import redis as redis_py

from orchestrator.ids import child_session_id, item_id, run_id
from orchestrator.ledger import CLOSED, Ledger, SessionState, layout
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.scripts import Arg, request
from tests.kit import Kit
from tests.routed import mark, outside
from tests.services import Services


@pytest.mark.parametrize(
    ("asked", "outstanding", "state"),
    [
        ("stopped", True, SessionState.STOPPED),
        ("failed", True, SessionState.FAILED),
        ("deleted", True, SessionState.DELETED),
        ("deleted", False, SessionState.DELETED),
        ("stopped", False, SessionState.FINISHED),
    ],
)
def test_an_end_that_was_asked_for_comes_although_the_agent_was_done_first(
    services: Services, kit: Kit, ledger: Ledger, asked: str, outstanding: bool, state: SessionState
) -> None:
    """What was to be stopped may just as well have finished; what was to be deleted is deleted."""
    root, held = kit.given_run()
    if outstanding:
        kit.delegate(held, "a")
    assert ledger.stop(root, "enough", state=asked).outcome == "asked"  # type: ignore[arg-type]
    kit.commit(held.claim, "an answer")
    services.drain()
    assert ledger.session(root).state == state
    assert ledger.sweep.closing(0) == []


def test_a_run_in_the_hands_of_a_foreign_program_is_stopped_without_asking(kit: Kit, ledger: Ledger) -> None:
    """Nobody could be asked: it holds no lease and hears no heartbeat."""
    root = outside(kit)
    assert ledger.stop(root, "enough").outcome == "ended"
    assert ledger.session(root).state == SessionState.STOPPED


def test_a_report_that_comes_again_ends_no_later_run(kit: Kit, ledger: Ledger) -> None:
    """Found by a play: a router had read it, stood still, and another one took it over. The session was resumed since."""
    root = outside(kit)
    said = {"mark": mark("m", "task-completion"), "status": "completed", "message": "m"}
    assert ledger.transition("route_report", root, "the answer", "", **said) == [b"done", b"finished"]
    ledger.enqueue(root, "go on", item_id=item_id(root, "prompt"))
    flushed = ledger.flush(root).dispatch
    assert flushed is not None
    assert ledger.transition("route_report", root, "the answer", "", **said) == [b"over"]
    kit.claim(flushed)
    assert ledger.transition("route_report", root, "the answer", "", **said) == [b"over"]
    assert ledger.session(root).state == SessionState.RUNNING


def test_the_last_word_to_an_unstarted_child_of_a_deleted_parent_is_that_it_ends(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """Nothing is owed for it, so nothing of its deleted parent waits; it is stopped all the same."""
    root, quiet = kit.parent_of("a", callback=False)
    assert ledger.stop(root, "gone", state="deleted").outcome == "ended"
    services.drain()
    assert ledger.session(quiet).state in CLOSED
    assert [i.state for i in ledger.items(root)] == []


def test_who_asked_a_session_that_is_deleted_hears_that_no_reply_will_come(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    root, parent = kit.given_run()
    ledger.effect(parent.claim, effect="policy", facts={"close_policy": "abandon"})
    asking = kit.run(kit.delegate(parent, "a"))
    kit.ask(asking, root)
    kit.commit(asking.claim)
    kit.commit(parent.claim)
    ledger.stop(root, "gone", state="deleted")
    heard = services.resumed()
    assert heard.session.id == asking.session.id
    assert "no reply will come" in next(iter(heard.texts.values()))


def test_a_child_that_another_service_has_just_deleted_still_has_children_to_be_deleted(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """The one that deleted it died before it came to anything else; the next one sees a deleted child."""
    root, child = kit.parent_of("child")
    middle = kit.run(child)
    leaf = kit.delegate(middle, "leaf")
    kit.commit(middle.claim)
    kit.finish(leaf)
    for _ in (child, root):
        kit.commit(services.resumed().claim)
    services.drain()
    ledger.stop(root, "gone", state="deleted")
    ledger.stop(child, f"parent {root} deleted", state="deleted")
    services.delivery.close(root)
    assert child in ledger.sweep.closing(0)
    services.reaper.run_once()
    services.drain()
    assert {s.state for s in ledger.tree(root)} == {SessionState.DELETED}
    assert ledger.sweep.closing(0) == []


@pytest.mark.parametrize("first", ["stopped", "failed"])
def test_deleting_what_was_stopped_or_failed_long_ago_leaves_nothing_of_its_children(
    first: Literal["stopped", "failed"], services: Services, kit: Kit, ledger: Ledger
) -> None:
    """All of its items had been seen to by then, as those of a session whose children's words are kept."""
    root, delivered, running = kit.parent_of("a", "b")
    kit.finish(delivered, "a secret")
    kit.commit(services.resumed().claim)
    ledger.stop(root, "enough", state=first)
    services.drain()
    assert ledger.session(running).state == SessionState.STOPPED
    ledger.stop(root, "gone", state="deleted")
    services.drain()
    assert {s.state for s in ledger.tree(root)} == {SessionState.DELETED}
    assert ledger.texts(delivered, ["prompt", "result"]) == {}
    assert ledger.sweep.closing(0) == []


def test_a_service_that_looked_at_a_stopped_session_does_not_bury_it_once_it_is_deleted(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """It is deleted while a service sees to its children: that look let those be that had ended."""
    root, child, _ = kit.parent_of("a", "b")
    kit.finish(child, "a secret")
    kit.commit(services.resumed().claim)
    ledger.stop(root, "enough")
    looked = ledger.session(root)
    for item in ledger.items(root):
        ledger.stop(item.child, "parent stopped")
    ledger.stop(root, "gone", state="deleted")
    assert not ledger.finish_cleanup(root, seen_as=looked.state)
    services.drain()
    assert {s.state for s in ledger.tree(root)} == {SessionState.DELETED}


@pytest.mark.parametrize("policy", ["stop", "abandon"])
@pytest.mark.parametrize("end", ["stopped", "failed", "finished"])
def test_stopping_a_tree_stops_what_owes_it_nothing_too(
    policy: Literal["stop", "abandon"],
    end: Literal["stopped", "failed", "finished"],
    services: Services,
    kit: Kit,
    ledger: Ledger,
) -> None:
    """A child that a user has resumed since it answered, and what a child left at work that wants nothing back."""
    root, done, again, last = kit.parent_of("done", "again", "last", on_close=policy)
    launching = kit.run(done)
    left = kit.run(kit.delegate(launching, "left", callback=False))
    kit.commit(launching.claim)
    kit.finish(again)
    kit.finish(last) if end == "finished" else kit.run(last)
    kit.commit(services.resumed().claim)
    ledger.enqueue(again, "once more", item_id="itm_00x")
    resumed = services.resumed()
    if end == "finished":
        assert ledger.session(root).state == SessionState.FINISHED
        # The child that left it at work has finished as well, and says itself what becomes of it.
        asked = services.delivery.stop_below(ledger.tree(root), "enough")
        assert asked == (2 if policy == "stop" else 1)
        assert ledger.renew(left.claim).stop == "enough"
    else:
        ledger.stop(root, "enough", state=end)
        services.drain()
        assert bool(ledger.renew(left.claim).stop) == (policy == "stop")
    assert bool(ledger.renew(resumed.claim).stop) == (policy == "stop")


@pytest.mark.parametrize("end", ["stopped", "failed", "completed"])
def test_who_is_to_be_deleted_is_although_it_was_asked_for_less_later_and_ends_in_its_own_way(
    end: str, services: Services, kit: Kit, ledger: Ledger
) -> None:
    root, held = kit.given_run()
    ledger.stop(root, "gone", state="deleted")
    assert ledger.stop(root, "enough").outcome == "asked"
    assert ledger.renew(held.claim).stop == "gone"
    kit.commit(held.claim, "an end", status=end)
    services.drain()
    assert ledger.session(root).state == SessionState.DELETED


@pytest.mark.parametrize("comes", ["nothing", "a callback", "a deadline", "words"])
def test_the_stop_of_an_idle_parent_is_an_event_when_it_can_move_somebody(
    comes: str, services: Services, kit: Kit, ledger: Ledger
) -> None:
    """Its queue, a deadline, or a user who waits until the run has dealt with what was said."""
    root, held = kit.given_run()
    child = kit.delegate(held, "a")
    if comes == "words":
        kit.delegate(held, "b")
        kit.commit(held.claim)
        ledger.enqueue(root, "and now?", item_id="itm_1")
        held = services.resumed()
    if comes == "a callback":
        kit.finish(child)
        services.drain()
    waiting = {"": {"mode": "all", "deadline_ms": 1}} if comes == "a deadline" else None
    kit.commit(held.claim, waiting=waiting)
    assert services.redis.xlen(keys.session_events(0)) == (comes != "nothing")


def test_what_a_stop_says_of_its_parent_may_be_out_of_date(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """The parent has had a run since, made by another copy: the next one has the next number."""
    root, *children = kit.parent_of(*"abc")
    kit.finish(children[0])
    outdated = services.redis.xrange(keys.session_events(0))[-1][1]
    kit.commit(services.resumed().claim)
    kit.finish(children[1])
    assert services.redis.xrange(keys.session_events(0))[-1][1][b"runs"] != outdated[b"runs"]
    services.redis.xtrim(keys.session_events(0), maxlen=0)
    services.redis.xadd(keys.session_events(0), outdated)
    services.drain()
    assert [ledger.run(d.run).number for d in services.sent if d.session == root][-1] == 3


def test_a_programs_task_whose_parent_is_removed_meanwhile_begins_nothing(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis
) -> None:
    """The router has found the parent; its tree expires before the session is made, which would have no root."""
    root = kit.given()
    kit.finish(root)
    ledger.sweep.mark_result_published(root)
    session = child_session_id(root, "message|m1")
    assert ledger.sweep.delete_session(root, root) == 0
    before = set(redis.scan_iter())
    octets: list[Arg] = []
    about = layout.launch(
        {"id": session, "agent": "reviewer", "priority": "high"},
        {"agent": "reviewer", "priority": "high"},
        octets,
        prompt="go",
        envelope="",
        task="",
    )
    # No limits, and a sender that is one of the system's own.
    begun = {"launches": [about], "message": "m1", "run": run_id(session, 1), "parent": root, "task": "t1"}
    body = request(**begun, mark=mark("m1", "task-delegation"), first="m1", look_ms=1000)
    answer = ledger.scripts.run("launch", [ledger_keys.session(session)], [body, *octets])
    assert answer == [b"closed", b"removed"]
    assert set(redis.scan_iter()) == before
