"""A program outside of the stack hears of every end of what it asked for, and of what it runs itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from orchestrator import Client
from orchestrator.envelope.bodies import ErrorReport, Review, ReviewRequest
from orchestrator.ledger import Session, SessionState
from orchestrator.redisdb import ledger_keys
from tests.integration.router.conftest import ONCE, Family, end_run, errors, sweep_until, task
from tests.kit import Kit


def heard(kit: Kit, by: str = "partner") -> list[tuple[str, str]]:
    """What errors of critical severity say to an agent: the sender, and the text."""
    found = []
    for message in errors(kit):
        assert isinstance(message.body, ErrorReport)
        if message.header.recipient.agent_name == by:
            assert (message.body.severity, message.header.priority) == ("critical", "critical")
            found.append((message.header.sender.agent_name, message.body.message))
    return found


def given(kit: Kit, recipient: str = "lead", *, seconds: int = 0) -> Session:
    """The session of a task, or with ``seconds`` of a review, that `partner` has given an agent."""
    about: dict[str, Any] = {"sender": "partner", "recipient": recipient}
    if seconds:
        review = ReviewRequest(review=Review(task_id="R-1", title="Look", description="at it"))
        kit.post(review, **about, retry=ONCE.model_copy(update={"timeout_seconds": seconds}))
    else:
        kit.post(task(), **about)
    kit.route("given")
    assert kit.dead() == []
    return kit.ledger.roots(0)[0]


@pytest.mark.parametrize("how", ["stop", "delete"])
def test_a_user_ends_what_a_program_asked_for(kit: Kit, how: str) -> None:
    session = given(kit)
    with Client(kit.settings) as client:
        verdict = (client.stop if how == "stop" else client.delete)(session.id, "not needed")
    assert verdict.outcome == "ended"
    assert heard(kit) == [("operator", "not needed")]


def test_a_run_that_was_asked_to_stop_and_lost_its_worker(kit: Kit) -> None:
    session = given(kit)
    kit.claim(session.id)
    with Client(kit.settings) as client:
        assert client.stop(session.id, "enough").outcome == "asked"
    assert heard(kit) == []
    sweep_until(kit, session.id, SessionState.STOPPED, lease_s=0.01)
    assert heard(kit) == [("reaper", "enough, and its worker was lost")]


def test_a_session_whose_child_failed_it(kit: Kit) -> None:
    """`on_failure="fail"`: the callback service ends the parent."""
    session = given(kit)
    lead = kit.claim(session.id)
    child = kit.assign(lead, "reviewer", options={"on_failure": "fail"}).child_id
    kit.route("launched")
    end_run(kit, lead)
    end_run(kit, kit.claim(child), "no luck", status="failed")
    kit.services.drain()
    assert kit.ledger.session(session.id).state is SessionState.FAILED
    assert heard(kit) == [("reaper", f"child {child} failed: no luck")]


def test_a_review_that_was_not_done_in_time(kit: Kit) -> None:
    session = given(kit, "code-reviewer", seconds=1)
    sweep_until(kit, session.id, SessionState.FAILED)
    assert heard(kit) == [("reaper", "the review was not done in time")]


@pytest.mark.parametrize("end", ["stopped", "deleted"])
def test_what_a_program_runs_and_what_it_launched_ends_with_the_parent(kit: Kit, end: str) -> None:
    """It hears of both: that it need not go on, and that nobody else does."""
    family = Family(kit)
    root, own = family.lead.session.id, family.child
    kit.route("launched")
    family.post(task("T-2"), recipient="reviewer")
    kit.route("second")
    (below,) = [s for s in kit.ledger.tree(root) if s.agent == "reviewer"]
    kit.ledger.stop(root, "no more", state=end, force=True)  # type: ignore[arg-type]
    kit.services.drain()
    states = {s.id: s.state.value for s in kit.ledger.find([own, below.id])}
    assert states == {own: end, below.id: end}
    told = heard(kit)
    assert len(told) == 2
    assert set(told) == {("reaper", f"parent {root} {end}"), ("reaper", f"parent {own} {end}")}


def test_a_report_names_the_session_and_stands_in_the_conversation(kit: Kit) -> None:
    session = given(kit)
    kit.ledger.stop(session.id, "enough")
    (message,) = errors(kit)
    assert message.header.correlation_id == session.correlation
    assert message.header.conversation_chain == session.chain
    assert isinstance(message.body, ErrorReport)
    assert message.body.details is not None
    assert json.loads(message.body.details.context_data or "")["session"] == session.id


@pytest.mark.parametrize("how", ["stop", "release"])
def test_an_end_that_cannot_be_reported_does_not_happen(
    kit: Kit, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written before its report can be written with it; the next one who tries finds all as it was."""
    session = given(kit)
    ledger = kit.ledger
    end: Callable[[], object] = partial(ledger.stop, session.id, "enough")
    if how == "release":
        kit.claim(session.id)
        ledger.stop(session.id, "enough")
        end = partial(ledger.release, ledger.sweep.leases(0)[0])

    def broken(*_: object) -> list[object]:
        raise RuntimeError("no key")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "report", broken)
        with pytest.raises(RuntimeError, match="no key"):
            end()
    assert (ledger.session(session.id).busy, heard(kit)) == (True, [])
    end()
    assert (ledger.session(session.id).state, len(heard(kit))) == (SessionState.STOPPED, 1)


def test_a_session_with_damaged_books_ends_all_the_same(kit: Kit) -> None:
    session = given(kit)
    kit.redis.hset(ledger_keys.session(session.id), "correlation", "damaged")
    assert kit.ledger.stop(session.id, "enough").outcome == "ended"
    assert heard(kit) == []
