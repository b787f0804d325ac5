"""Children that report to another session than the one that launched them, or to nobody."""

from __future__ import annotations

import pytest

from orchestrator.ids import callback_id
from orchestrator.ledger import ClaimedRun, ItemState, Ledger, RunRef, SessionState
from orchestrator.redisdb import keys, ledger_keys

from .conftest import Play


@pytest.fixture
def parent(play: Play) -> ClaimedRun:
    return play.run(play.submit("root"))


def launch_for(play: Play, parent: ClaimedRun, caller: str) -> str:
    return play.delegate(parent, "child", callback=False, caller=caller, caller_agent="reviewer")


def test_a_caller_waits_for_nothing_and_is_resumed_by_the_end(
    play: Play, ledger: Ledger, parent: ClaimedRun
) -> None:
    """Neither the parent nor the caller is held up by the child; the caller is owed a callback from its end on."""
    caller = play.delegate(parent, "caller")
    child = launch_for(play, parent, caller)
    assert (ledger.session(child).parent, ledger.session(child).delegator) == (caller, "reviewer")
    play.finish(caller)
    assert ledger.session(caller).state is SessionState.FINISHED
    assert play.balance(caller) == (0, 0, 0, 0)
    play.finish(child, "found it")
    assert play.balance(caller) == (1, 0, 1, 0)
    held = play.resume(caller)
    assert held.texts == {callback_id(child): "found it"}
    play.commit(held.claim)
    assert play.balance(caller) == (1, 1, 0, 0)
    assert play.balance(parent.session.id) == (1, 0, 1, 0)


def test_a_callback_for_a_closed_caller_is_dead_with_a_reason(
    play: Play, ledger: Ledger, parent: ClaimedRun
) -> None:
    caller = play.delegate(parent, "caller")
    child = launch_for(play, parent, caller)
    held = play.run(child)
    play.finish(caller, "boom", status="failed")
    play.commit(held.claim)
    item = ledger.item(caller, callback_id(child))
    assert (item.state, item.reason) == (ItemState.DEAD, "parent failed")
    assert play.balance(caller) == (1, 0, 0, 1)


def test_a_child_that_a_second_try_does_not_take_up_is_stopped(
    play: Play, ledger: Ledger, parent: ClaimedRun
) -> None:
    """It reports to its caller, and belongs to the run that launched it all the same."""
    caller = play.delegate(parent, "caller")
    child = launch_for(play, parent, caller)
    lease = next(lease for lease in ledger.sweep.leases(0) if lease.run == parent.claim.run)
    ledger.release(lease)
    again = play.claim(RunRef(run=lease.run, session=lease.session, agent="lead", cause="start"))
    assert play.delegate(again, "caller") == caller
    play.commit(again.claim)
    stopped = [
        f[b"session"].decode()
        for _, f in ledger.redis.xrange(keys.session_events(0))
        if f[b"event"] == b"stop"
    ]
    assert stopped == [child]


def test_a_caller_that_was_deleted_before_the_launch_keeps_no_text_of_the_child(
    play: Play, ledger: Ledger, parent: ClaimedRun
) -> None:
    """What the child says would outlive the records of the caller, of which a tombstone is left."""
    caller = play.delegate(parent, "caller")
    assert ledger.stop(caller, "gone", state="deleted").outcome == "ended"
    assert ledger.finish_cleanup(caller, seen_as=SessionState.DELETED)
    child = launch_for(play, parent, caller)
    play.finish(child, "a secret")
    item = ledger.item(caller, callback_id(child))
    assert (item.state, item.reason) == (ItemState.DEAD, "parent deleted")
    assert play.balance(caller) == (1, 0, 0, 1)
    assert ledger.texts(child, ["result"]) == {"result": "a secret"}
    assert ledger.stop(child, "gone", state="deleted").outcome == "ended"
    assert ledger.finish_cleanup(child, seen_as=SessionState.DELETED)
    assert not ledger.redis.exists(ledger_keys.bodies(caller), ledger_keys.bodies(child))
