"""Questions, replies and what is taken into a running run: once each, whatever is tried again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis as redis_py

from orchestrator.errors import WrongState
from orchestrator.ids import asker_of, question_id, reply_id
from orchestrator.ledger import ClaimedRun, EndedRun, ItemState, Ledger, Outcome, RetryLater, SessionState
from tests.kit import Kit, carried
from tests.services import Services


def _family(kit: Kit) -> tuple[ClaimedRun, ClaimedRun]:
    """A parent and its child, both running."""
    parent = kit.run(kit.given())
    return parent, kit.run(kit.delegate(parent, "a"))


def _ask(kit: Kit, child: ClaimedRun, parent: str, *, effect: str = "ask") -> str:
    question = question_id(child.claim.session, f"{child.claim.run}:{effect}")
    return kit.ask(child, parent, item=question, effect=effect)


def _reply(ledger: Ledger, question: str, text: str = "that one") -> bool:
    asker = asker_of(question)
    assert asker is not None
    return ledger.enqueue(
        asker, text, item_id=reply_id(question), kind="reply", priority="high", answers=question
    )


def test_a_question_names_its_asker() -> None:
    question = question_id("ses_0a0123456789abcdef01234567", "key")
    assert asker_of(question) == "ses_0a0123456789abcdef01234567"
    assert reply_id(question) != question
    for other in ("ask_", question[:-1], "cb_" + question[4:], question[:-1] + "g", "ses_x"):
        assert asker_of(other) is None


@pytest.mark.parametrize("cut", ["asked", "answered", "taken"])
def test_a_run_tried_again_asks_the_same_question_and_gets_the_same_reply(
    kit: Kit, ledger: Ledger, cut: str
) -> None:
    parent, child = _family(kit)
    session = child.claim.session
    question = _ask(kit, child, parent.claim.session)
    if cut != "asked":
        _reply(ledger, question)
    if cut == "taken":
        ledger.claim_item(child.claim, reply_id(question))
    kit.crash(session)
    again = kit.claim(session)
    assert _ask(kit, again, parent.claim.session) == question
    assert [i.id for i in ledger.items(parent.claim.session) if i.kind == "query"] == [question]
    if cut == "asked":
        _reply(ledger, question)
    assert ledger.claim_item(again.claim, reply_id(question))[1] == "that one"
    kit.commit(again.claim)
    assert ledger.session(session).questions == ()


def test_a_question_that_a_further_try_does_not_ask_again_is_withdrawn(kit: Kit, ledger: Ledger) -> None:
    """Its session can finish, and its parent is not asked; one that is asked again stays open."""
    parent, child = _family(kit)
    asked, session = parent.claim.session, child.claim.session
    kit.commit(parent.claim)
    kept, left = (_ask(kit, child, asked, effect=name) for name in ("kept", "left"))
    kit.crash(session)
    again = kit.claim(session)
    assert _ask(kit, again, asked, effect="kept") == kept
    assert kit.commit(again.claim).session_state == SessionState.IDLE
    assert ledger.session(session).questions == (kept,)
    item = ledger.item(asked, left)
    assert (item.state, item.reason) == (ItemState.DEAD, "not asked again when its run was tried again")
    assert [i.id for i in kit.resume(asked).items] == [kept]


def test_an_asker_that_waits_no_longer_withdraws_its_question(kit: Kit, ledger: Ledger) -> None:
    """It leaves the queue, dead with the reason; its session may finish; a late reply is refused."""
    parent, child = _family(kit)
    asked = parent.claim.session
    kit.commit(parent.claim)
    question = _ask(kit, child, asked)
    withdraw = {"asker": child.claim.session, "asked": asked, "reason": "waited too long"}
    assert ledger.withdraw(question, **withdraw, claim=child.claim)
    assert not ledger.withdraw(question, **withdraw, claim=child.claim)
    item = ledger.item(asked, question)
    assert (item.state, item.reason) == (ItemState.DEAD, "waited too long")
    assert ledger.flush(asked).outcome == "empty"
    assert ledger.sweep.waiting(0) == []
    with pytest.raises(WrongState):
        _reply(ledger, question)
    assert kit.commit(child.claim).session_state == SessionState.FINISHED


def test_a_question_that_was_read_already_can_be_closed_only(kit: Kit, ledger: Ledger) -> None:
    """The run that carries it keeps it; only the reply comes too late."""
    parent, child = _family(kit)
    asked = parent.claim.session
    question = _ask(kit, child, asked)
    kit.commit(parent.claim)
    reading = kit.resume(asked)
    assert ledger.withdraw(question, asker=child.claim.session, asked=asked, reason="x", claim=child.claim)
    kit.commit(reading.claim)
    assert ledger.item(asked, question).state == ItemState.DELIVERED


def test_who_asked_a_session_that_is_closed_hears_that_no_reply_will_come(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """Under the id of the reply, so that one who is blocked on it is woken; let go, it may work on."""
    parent = kit.run(kit.given())
    child = kit.run(kit.delegate(parent, "a", on_close="abandon"))
    question = _ask(kit, child, parent.claim.session)
    kit.commit(parent.claim, "boom", status="failed")
    services.drain()
    item, text = ledger.claim_item(child.claim, reply_id(question))
    assert (item.status, item.extra["answers"]) == ("failed", question)
    assert text.startswith("no reply will come: ")


@pytest.mark.parametrize("read", [False, True])
def test_a_question_that_its_parent_never_answers_is_given_up_after_its_time(
    services: Services, kit: Kit, ledger: Ledger, *, read: bool
) -> None:
    """The child goes on without a reply, and its parent, read or not, is bothered no more."""
    ledger.limits = replace(ledger.limits, question_ms=86_400_000)
    ledger.set_time(1_000_000)
    parent, child = _family(kit)
    question = _ask(kit, child, parent.claim.session)
    kit.commit(child.claim, "asked")
    if read:
        kit.commit(parent.claim)
        kit.commit(kit.resume(parent.claim.session).claim, "no idea")
    ledger.set_time(1_000_000 + 86_400_000 - 1)
    services.reaper.run_once()
    assert ledger.session(child.claim.session).questions == (question,)
    ledger.set_time(1_000_000 + 86_400_000)
    services.reaper.run_once()
    services.reaper.run_once()
    services.drain()
    heard = kit.claim(next(d for d in services.sent if d.session == child.claim.session))
    assert [(i.kind, i.status) for i in heard.items] == [("reply", "failed")]
    assert list(heard.texts.values()) == ["no reply will come: its time is over"]
    assert ledger.sweep.due_timers(0) == []
    item = ledger.item(parent.claim.session, question)
    assert item.state == (ItemState.DELIVERED if read else ItemState.DEAD)
    assert item.reason == ("" if read else "no reply in time: its time is over")
    kit.commit(heard.claim, "without")
    assert not _reply(ledger, question)
    assert ledger.session(child.claim.session).state == SessionState.FINISHED


def test_a_question_to_a_child_that_has_waited_long_enough_leaves_the_childs_queue(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    parent, child = _family(kit)
    question = _ask(kit, parent, child.claim.session)
    services.delivery.give_up(question, "too late")
    assert ledger.session(parent.claim.session).questions == ()
    asked = ledger.item(child.claim.session, question)
    assert (asked.state, asked.reason) == (ItemState.DEAD, "no reply in time: too late")


@pytest.mark.parametrize("kind", ["completion", "prompt", "reply", "aggregated"])
def test_an_agent_puts_nothing_that_only_the_system_makes(kit: Kit, ledger: Ledger, kind: str) -> None:
    """Whatever the code above it lets through, the step that makes an item does not."""
    parent, child = _family(kit)
    with pytest.raises(redis_py.ResponseError, match=f"kind {kind} is not made in this way"):
        kit.say(child, parent.claim.session, item="itm_00x", kind=kind)
    if kind != "prompt":
        with pytest.raises(redis_py.ResponseError, match=f"kind {kind} is not made in this way"):
            ledger.enqueue(parent.claim.session, "!", item_id="itm_00x", kind=kind)
    assert ledger.item(parent.claim.session, "itm_00x") is None


def test_a_run_that_fails_at_a_question_has_all_its_attempts_first(kit: Kit, ledger: Ledger) -> None:
    """Only then is the question answered with the failure; what else the run carried is queued again, once."""
    parent, child = _family(kit)
    root = parent.claim.session
    other = kit.delegate(parent, "other")
    kit.commit(parent.claim)
    question = _ask(kit, child, root)
    kit.finish(other, "done")
    answered: list[list[str]] = []

    def fail() -> object:
        return ledger.commit(
            EndedRun(
                kit.claim(root).claim,
                Outcome(status="failed", text="no idea", attempts=2),
                make_envelope=lambda: carried("error"),
                answer_questions=lambda names: answered.append(list(names)) or True,
            )
        )

    assert ledger.flush(root).outcome == "run"
    assert fail() == RetryLater(failures=1)
    assert answered == []
    assert fail().session_state is SessionState.IDLE
    assert answered == [[question]]
    assert ledger.item(root, question).state is ItemState.DEAD
    again = kit.resume(root)
    assert [i.status for i in again.items] == ["completed"]
    # Now there is no question that it could be blamed on.
    kit.commit(again.claim, "boom", status="failed")
    assert ledger.session(root).state is SessionState.FAILED
