"""Children that outlive a closed parent: handed to an heir or let go, once, and left alone from then on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis as redis_py

from orchestrator.errors import WrongState
from orchestrator.ids import callback_id
from orchestrator.ledger import (
    ClaimedRun,
    EndedRun,
    ItemState,
    Ledger,
    Outcome,
    Session,
    SessionState,
)
from orchestrator.reconciler.delivery import Delivery
from orchestrator.redisdb import keys, ledger_keys
from tests.kit import Kit, carried
from tests.routed import mark, outside
from tests.services import Services


@pytest.fixture
def heir(kit: Kit) -> str:
    """A session of another tree that has finished."""
    session = kit.given("heir")
    kit.finish(session)
    return session


def close_with(
    kit: Kit, policy: Callable[[list[str]], str], *, children: int = 2, **options: Any
) -> tuple[str, list[str]]:
    """A root that has failed, its children still pending; the policy is made of their ids."""
    root, parent = kit.given_run()
    launched = [kit.delegate(parent, f"child {n}", **options) for n in range(children)]
    kit.ledger.effect(parent.claim, effect="policy", facts={"close_policy": policy(launched)})
    kit.commit(parent.claim, "boom", status="failed")
    return root, launched


def test_two_services_that_close_one_parent_hand_its_children_on_once(
    kit: Kit, ledger: Ledger, heir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have read that the callbacks are owed before either has acted; the slower one harms nobody."""
    root, children = close_with(kit, lambda _: f"heir:{heir}")
    owed = ledger.items(root)
    Delivery(ledger, lambda _: None).close(root)
    monkeypatch.setattr(ledger, "items", lambda _: owed)
    Delivery(ledger, lambda _: None).close(root)
    monkeypatch.undo()
    assert [ledger.session(child).state for child in children] == [SessionState.PENDING] * 2
    assert kit.balance(heir) == (2, 0, 2, 0)
    for child in children:
        kit.finish(child, f"end of {child}")
    held = kit.resume(heir)
    assert held.texts == {callback_id(child): f"end of {child}" for child in children}


def test_the_report_of_a_program_delivers_what_it_inherited(kit: Kit, ledger: Ledger) -> None:
    """Counted among those of its group, too."""
    heir = outside(kit, "heir")
    _, (child,) = close_with(kit, lambda _: f"heir:{heir}", children=1)
    Delivery(ledger, lambda _: None).close(ledger.session(child).parent)
    kit.finish(child)
    said = {"status": "completed", "message": "m"}
    ledger.transition("route_report", heir, "done", "", mark=mark("m", "task-completion"), **said)
    assert kit.balance(heir) == (1, 1, 0, 0)
    assert ledger.sweep.reindex(heir, recount=True) == []


def test_a_child_may_be_the_heir_and_then_waits_for_its_sisters_only(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """Its own callback is dead: nobody waits for his own end."""
    root, (heir, sister) = close_with(kit, lambda children: f"heir:{children[0]}")
    services.drain()
    assert parents(ledger.tree(root)) == {root: "", heir: root, sister: heir}
    assert kit.balance(root) == (2, 0, 0, 2)
    assert kit.balance(heir) == (1, 0, 1, 0)
    assert ledger.sweep.closing(0) == []
    kit.commit(kit.run(heir).claim, "waits for its sister")
    kit.finish(sister)
    kit.commit(kit.resume(heir).claim)
    assert ledger.session(heir).state == SessionState.FINISHED


def test_a_branch_that_holds_the_heir_is_let_go(services: Services, kit: Kit, ledger: Ledger) -> None:
    """What is no ancestor of the heir it inherits; its own ancestor would wait for it, and it for that."""
    parent = kit.run(kit.given("root"))
    branch = kit.run(kit.delegate(parent, "branch"))
    other = kit.delegate(parent, "other")
    heir = kit.delegate(branch, "heir")
    kit.commit(branch.claim)
    ledger.effect(parent.claim, effect="policy", facts={"close_policy": f"heir:{heir}"})
    kit.commit(parent.claim, "boom", status="failed")
    services.drain()
    root = parent.session.id
    assert parents(ledger.tree(root)) == {
        root: "",
        branch.session.id: root,
        other: heir,
        heir: branch.session.id,
    }
    (let_go,) = [i for i in ledger.items(root) if i.child == branch.session.id]
    assert let_go.reason == f"let go: heir {heir} is this child or below it"
    assert ledger.session(branch.session.id).state == SessionState.IDLE
    assert ledger.sweep.closing(0) == []


@pytest.mark.parametrize("gone", ["deleted", "never there"])
def test_without_an_heir_that_can_hear_the_children_are_stopped(
    services: Services, kit: Kit, ledger: Ledger, heir: str, gone: str
) -> None:
    if gone == "deleted":
        ledger.stop(heir, "gone", state="deleted")
    else:
        heir = "ses_00" + "0" * 24
    root, children = close_with(kit, lambda _: f"heir:{heir}")
    services.drain()
    assert [ledger.session(child).state for child in children] == [SessionState.STOPPED] * 2
    assert kit.balance(root) == (2, 0, 0, 2)
    assert ledger.sweep.closing(0) == []


@pytest.mark.parametrize("policy", ["heir", "abandon"])
def test_deleting_a_closed_parent_leaves_what_it_let_go_alone(
    services: Services, kit: Kit, ledger: Ledger, heir: str, policy: str
) -> None:
    """It was stopped first and deleted later: its children are somebody else's or nobody's by then."""
    root, children = close_with(kit, lambda _: f"heir:{heir}" if policy == "heir" else policy)
    services.drain()
    at_work = kit.run(children[0])
    assert ledger.stop(root, "tidy up", state="deleted").outcome == "ended"
    services.drain()
    assert [ledger.session(child).state for child in children] == ["running", "pending"]
    assert not ledger.run(at_work.run.id).stop  # type: ignore[union-attr]
    assert kit.balance(heir) == ((2, 0, 2, 0) if policy == "heir" else (0, 0, 0, 0))
    assert kit.balance(root) == (2, 0, 0, 2)


def test_a_child_that_owes_nothing_goes_on_where_the_others_get_an_heir(
    services: Services, kit: Kit, ledger: Ledger, heir: str
) -> None:
    _, (quiet,) = close_with(kit, lambda _: f"heir:{heir}", children=1, callback=False)
    services.drain()
    assert ledger.session(quiet).state == SessionState.PENDING
    assert kit.balance(heir) == (0, 0, 0, 0)
    assert ledger.sweep.closing(0) == []


def parents(tree: list[Session]) -> dict[str, str]:
    return {member.id: member.parent for member in tree}


def test_a_failure_that_is_to_fail_the_parent_fails_an_heir_that_had_finished(
    services: Services, kit: Kit, ledger: Ledger, heir: str
) -> None:
    """It would be neither failed nor ever resumed again."""
    root, child = kit.parent_of("a", on_close=f"heir:{heir}", on_failure="fail")
    held = kit.run(child)
    ledger.stop(root, "enough")
    services.drain()
    kit.commit(held.claim, "boom", status="failed")
    services.drain()
    assert ledger.session(heir).state == SessionState.FAILED
    assert "boom" in ledger.session(heir).reason
    assert kit.balance(heir) == (1, 0, 0, 1)
    with pytest.raises(WrongState):
        ledger.enqueue(heir, "go on", item_id="itm_00p")


class Readers:
    """A vault that writes into each text who may read it."""

    def seal(self, text: str, *, label: str, by: str, to: tuple[str, ...]) -> str:
        return f"{','.join(to)}: {text}"

    def open(self, sender: str, readers: str, label: str, content: str) -> str | None:
        return None


def test_an_heir_can_read_what_is_attached_to_the_answer_of_its_child(
    redis: redis_py.Redis, kit: Kit
) -> None:
    """It is sealed for the agent that hears the end, and not for the one that launched the child."""
    heir = kit.given("heir", agent="archivist")
    kit.finish(heir)
    ledger = kit.ledger = Ledger(redis, encryption=Readers())
    root, launched = kit.parent_of("child", envelope=replace(carried(), encrypted=True))
    child = kit.run(launched)
    ledger.stop(root, "enough")
    ledger.inherit(root, heir, child.session.id, callback_id(child.session.id))
    ledger.commit(
        EndedRun(
            child.claim,
            Outcome(status="completed", text="done", attachments={"notes": "long"}),
            make_envelope=lambda: carried("task-completion"),
            about=child.session,
            expect_over=True,
        )
    )
    (item,) = ledger.items(heir)
    assert ledger.texts(heir, [item.id]) == {item.id: "archivist: done"}
    assert ledger.large_texts.read(item.extra["attachments"]["notes"]) == "archivist: long"


# --- Children that report to another session than the one that launched them, or to nobody.


@pytest.fixture
def parent(kit: Kit) -> ClaimedRun:
    return kit.run(kit.given())


def launch_for(kit: Kit, parent: ClaimedRun, caller: str) -> str:
    return kit.delegate(parent, "child", callback=False, caller=caller, caller_agent="reviewer")


def test_a_caller_waits_for_nothing_and_is_resumed_by_the_end(
    kit: Kit, ledger: Ledger, parent: ClaimedRun
) -> None:
    """Neither the parent nor the caller is held up by the child; the caller is owed a callback from its end on."""
    caller = kit.delegate(parent, "caller")
    child = launch_for(kit, parent, caller)
    assert (ledger.session(child).parent, ledger.session(child).delegator) == (caller, "reviewer")
    kit.finish(caller)
    assert ledger.session(caller).state is SessionState.FINISHED
    assert kit.balance(caller) == (0, 0, 0, 0)
    kit.finish(child, "found it")
    assert kit.balance(caller) == (1, 0, 1, 0)
    held = kit.resume(caller)
    assert held.texts == {callback_id(child): "found it"}
    kit.commit(held.claim)
    assert kit.balance(caller) == (1, 1, 0, 0)
    assert kit.balance(parent.session.id) == (1, 0, 1, 0)


def test_a_callback_for_a_closed_caller_is_dead_with_a_reason(
    kit: Kit, ledger: Ledger, parent: ClaimedRun
) -> None:
    caller = kit.delegate(parent, "caller")
    child = launch_for(kit, parent, caller)
    held = kit.run(child)
    kit.finish(caller, "boom", status="failed")
    kit.commit(held.claim)
    item = ledger.item(caller, callback_id(child))
    assert (item.state, item.reason) == (ItemState.DEAD, "parent failed")
    assert kit.balance(caller) == (1, 0, 0, 1)


def test_a_child_that_a_second_try_does_not_take_up_is_stopped(
    kit: Kit, ledger: Ledger, parent: ClaimedRun
) -> None:
    """It reports to its caller, and belongs to the run that launched it all the same."""
    caller = kit.delegate(parent, "caller")
    child = launch_for(kit, parent, caller)
    kit.crash(parent.session.id)
    again = kit.claim(parent.session.id)
    assert kit.delegate(again, "caller") == caller
    kit.commit(again.claim)
    stopped = [
        f[b"session"].decode()
        for _, f in ledger.redis.xrange(keys.session_events(0))
        if f[b"event"] == b"stop"
    ]
    assert stopped == [child]


def test_a_caller_that_was_deleted_before_the_launch_keeps_no_text_of_the_child(
    kit: Kit, ledger: Ledger, parent: ClaimedRun
) -> None:
    """What the child says would outlive the records of the caller, of which a tombstone is left."""
    caller = kit.delegate(parent, "caller")
    assert ledger.stop(caller, "gone", state="deleted").outcome == "ended"
    assert ledger.finish_cleanup(caller, seen_as=SessionState.DELETED)
    child = launch_for(kit, parent, caller)
    kit.finish(child, "a secret")
    item = ledger.item(caller, callback_id(child))
    assert (item.state, item.reason) == (ItemState.DEAD, "parent deleted")
    assert kit.balance(caller) == (1, 0, 0, 1)
    assert ledger.texts(child, ["result"]) == {"result": "a secret"}
    assert ledger.stop(child, "gone", state="deleted").outcome == "ended"
    assert ledger.finish_cleanup(child, seen_as=SessionState.DELETED)
    assert not ledger.redis.exists(ledger_keys.bodies(caller), ledger_keys.bodies(child))
