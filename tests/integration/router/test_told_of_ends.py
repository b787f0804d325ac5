"""A program outside of the stack hears of every end of what it asked for, and of what it runs itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest

from orchestrator import Client
from orchestrator.envelope.bodies import ErrorReport, Review, ReviewRequest, Task, TaskDelegation
from orchestrator.envelope.model import RetryPolicy
from orchestrator.envelope.validate import check
from orchestrator.ledger import ClaimedRun, EndedRun, Outcome, Session, SessionState
from orchestrator.messages.factory import Thread
from orchestrator.reconciler.callbacks import CallbackService
from orchestrator.reconciler.delivery import Delivery
from orchestrator.reconciler.reaper import Reaper
from orchestrator.redisdb import ledger_keys
from tests.kit import Kit
from tests.waiting import until


def heard(kit: Kit, by: str = "partner") -> list[tuple[str, str]]:
    """What errors of critical severity say to an agent: the sender, and the text."""
    found = []
    for data in kit.published("error"):
        message = check(data).message
        assert isinstance(message.body, ErrorReport)
        if message.header.recipient.agent_name == by:
            assert (message.body.severity, message.header.priority) == ("critical", "critical")
            found.append((message.header.sender.agent_name, message.body.message))
    return found


def given(kit: Kit, recipient: str = "lead", *, seconds: int = 0) -> Session:
    """The session of a task, or with ``seconds`` of a review, that `partner` has given an agent."""
    if seconds:
        body: ReviewRequest | TaskDelegation = ReviewRequest(
            review=Review(task_id="R-1", title="Look", description="at it")
        )
    else:
        body = TaskDelegation(task=Task(task_id="T-1", title="Count", description="the lines"))
    retry = (
        RetryPolicy(max_attempts=1, backoff_strategy="linear", timeout_seconds=seconds) if seconds else None
    )
    data = kit.envelope(body, sender="partner", recipient=recipient, retry=retry)
    kit.publish(data, body.type, "high")
    kit.route("given")
    assert kit.dead() == []
    return kit.parts.ledger.roots(0)[0]


def reported(kit: Kit, held: ClaimedRun, status: str = "completed", text: str = "x") -> None:
    """A worker ends its run."""
    message_factory = kit.parts.message_factory
    make = partial(
        message_factory.error,
        sender=held.session.agent,
        recipient="lead",
        error=text,
        thread=Thread.of(held.session),
    )
    kit.parts.ledger.commit(EndedRun(held.claim, Outcome(status=status, text=text), make_envelope=make))  # type: ignore[arg-type]


def delivered(kit: Kit) -> None:
    """The callback service has handled all events."""
    service = CallbackService(kit.redis, Delivery(kit.parts.ledger, lambda _: None), consumer="c")
    while service.run_once():
        pass


def reaper(kit: Kit) -> Reaper:
    """A reaper that takes whatever does not move in no time."""
    ledger = kit.parts.ledger
    return Reaper(ledger, Delivery(ledger, lambda _: None), settle=lambda _: None, lease_s=0.01)


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
    sweeper = reaper(kit)
    until(lambda: sweeper.run_once() is not None and kit.parts.ledger.session(session.id).state == "stopped")
    assert heard(kit) == [("reaper", "enough, and its worker was lost")]


def test_a_session_whose_child_failed_it(kit: Kit) -> None:
    """`on_failure="fail"`: the callback service ends the parent."""
    session = given(kit)
    lead = kit.claim(session.id)
    child = kit.assign(lead, "reviewer", options={"on_failure": "fail"}).child_id
    kit.route("launched")
    reported(kit, lead)
    reported(kit, kit.claim(child), "failed", "no luck")
    delivered(kit)
    assert kit.parts.ledger.session(session.id).state is SessionState.FAILED
    assert heard(kit) == [("reaper", f"child {child} failed: no luck")]


def test_a_review_that_was_not_done_in_time(kit: Kit) -> None:
    session = given(kit, "code-reviewer", seconds=1)
    sweeper = reaper(kit)
    until(lambda: sweeper.run_once() is not None and kit.parts.ledger.session(session.id).state == "failed")
    assert heard(kit) == [("reaper", "the review was not done in time")]


@pytest.mark.parametrize("end", ["stopped", "deleted"])
def test_what_a_program_runs_and_what_it_launched_ends_with_the_parent(kit: Kit, end: str) -> None:
    """It hears of both: that it need not go on, and that nobody else does."""
    root = kit.send()
    kit.route("first")
    lead = kit.claim(root)
    own = kit.assign(lead, "partner").child_id
    kit.route("launched")
    about = kit.parts.ledger.session(own)
    task = TaskDelegation(task=Task(task_id="T-2", title="Look", description="at it"))
    data = kit.envelope(
        task, sender="partner", recipient="reviewer", correlation=about.correlation, chain=about.chain
    )
    kit.publish(data, "task-delegation", "high")
    kit.route("second")
    (below,) = [s for s in kit.parts.ledger.tree(root) if s.agent == "reviewer"]
    kit.parts.ledger.stop(root, "no more", state=end, force=True)  # type: ignore[arg-type]
    delivered(kit)
    states = {s.id: s.state.value for s in kit.parts.ledger.find([own, below.id])}
    assert states == {own: end, below.id: end}
    told = heard(kit)
    assert len(told) == 2
    assert set(told) == {("reaper", f"parent {root} {end}"), ("reaper", f"parent {own} {end}")}


def test_a_report_names_the_session_and_stands_in_the_conversation(kit: Kit) -> None:
    session = given(kit)
    kit.parts.ledger.stop(session.id, "enough")
    (data,) = kit.published("error")
    message = check(data).message
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
    ledger = kit.parts.ledger
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
    assert kit.parts.ledger.stop(session.id, "enough").outcome == "ended"
    assert heard(kit) == []
