"""`orchestra why` for every way in which a session can sleep: what it waits for, what moves it, by when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import Container
from orchestrator.config.settings import load_settings
from orchestrator.doctor import Blocker, Doctor, Severity
from orchestrator.ids import callback_id, question_id, reply_id
from orchestrator.ledger import ClaimedRun
from orchestrator.machine import isoformat
from orchestrator.redisdb import ledger_keys
from tests.kit import Kit
from tests.routed import outside

NOW = 1_900_000_000_000


class Place(Kit):
    """A ledger whose time stands still, a doctor, and a way to ask it."""

    def __init__(self, parts: Container) -> None:
        super().__init__(parts)
        self.ledger.limits = replace(self.ledger.limits, question_ms=86_400_000)
        self.ledger.set_time(NOW)
        self.doctor = Doctor(parts, audit=None, sleep=lambda _: None)

    def why(self, session: str) -> Blocker | None:
        return self.doctor.why(session)[1]

    def said(self, session: str) -> str:
        wait = self.why(session)
        return "" if wait is None else f"{wait.waits_for} | {wait.mover} | {wait.by}"

    def stuck(self) -> list[str]:
        diagnosis = self.doctor.examine(watch_leases=False)
        return [f.message for f in diagnosis.findings if f.severity is Severity.STUCK and f.rule == "late"]

    def parent(self, **options: object) -> tuple[ClaimedRun, list[str]]:
        """A session at work, and its two children."""
        _, held = self.given_run()
        return held, [self.delegate(held, name, **options) for name in ("first", "second")]

    def ask_parent(self, asker: ClaimedRun) -> str:
        return self.ask(asker, asker.session.parent, item=question_id(asker.session.id, "q"))


@pytest.fixture
def place(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> Place:
    return Place.on(redis, load_settings(redis_url=redis_url, data=tmp_path))


def test_a_run_that_stands_still_in_a_call_names_the_child(place: Place) -> None:
    held, (child, _) = place.parent()
    assert "is at work in" in place.said(held.session.id)
    assert place.ledger.claim_item(held.claim, callback_id(child), waits="wait") is None
    said = place.said(held.session.id)
    assert f"agent 'lead' waits in a call of child {child}" in said
    assert f"see `orchestra why {child}`" in said
    assert place.ledger.claim_item(held.claim, callback_id(child), waits="give up") is None
    assert "is at work in" in place.said(held.session.id)
    place.ledger.claim_item(held.claim, callback_id(child), waits="wait")
    place.finish(child)
    assert place.ledger.claim_item(held.claim, callback_id(child), waits="wait") is not None
    assert "is at work in" in place.said(held.session.id)


def test_a_run_for_an_agent_that_no_worker_serves_says_so(place: Place) -> None:
    session = place.given()
    place.start(session)
    assert "| nobody: no agent 'lead' is registered; start a worker that does, " in place.said(session)
    lead = AgentRecord(name="lead", role="coordinator", queue="orchestra")
    place.parts.agents.announce([lead])
    assert "| nobody: no living worker serves 'lead'; start a worker that does, " in place.said(session)


def test_a_run_that_is_tried_again_does_not_stand_still_for_what_the_first_try_did(place: Place) -> None:
    held, (child, _) = place.parent()
    place.ledger.claim_item(held.claim, callback_id(child), waits="wait")
    place.crash(held.session.id)
    place.claim(held.session.id)
    assert "is at work in" in place.said(held.session.id)


def test_a_run_that_stands_still_for_a_reply_names_the_question(place: Place) -> None:
    held, (child, _) = place.parent()
    asker = place.run(child)
    question = place.ask_parent(asker)
    place.ledger.claim_item(asker.claim, reply_id(question), waits="wait")
    said = place.said(child)
    assert f"agent 'reviewer' waits for the reply to its question {question}" in said
    assert f"session {held.session.id}, which was asked, or you: orchestra reply {question} TEXT" in said


def test_a_session_that_ended_its_run_with_a_question_says_until_when_it_waits(place: Place) -> None:
    held, (child, _) = place.parent()
    asker = place.run(child)
    question = place.ask_parent(asker)
    place.commit(asker.claim)
    said = place.said(child)
    assert said.startswith(f"a reply to its question {question} | session {held.session.id}, which was asked")
    assert said.endswith(f"{isoformat(NOW + 86_400_000)}: then it is told that no reply came")


def test_a_program_outside_of_the_stack_holds_no_lease(place: Place) -> None:
    said = place.said(outside(place))
    assert "an external program, is at work" in said
    assert "lease" not in said.replace("it holds no lease", "")


GROUPS: dict[str, tuple[dict[str, object], str]] = {
    "all": (
        {"mode": "all"},
        "all of its children: 1 is back, 1 is not | the end of {child} (reviewer) | no deadline; see",
    ),
    "quorum": (
        {"mode": "quorum", "k": 2},
        "a quorum of 2 of its children: 1 is back, 1 is not | the end of {child} (reviewer) | no deadline; see",
    ),
    "deadline": (
        {"mode": "all", "deadline_ms": NOW + 5_000},
        f"| the end of {{child}} (reviewer), else the deadline | {isoformat(NOW + 5_000)}",
    ),
    "window": ({"mode": "any", "window_ms": 3_000}, f"| the end of the window | {isoformat(NOW + 3_000)}"),
    "any": (
        {"mode": "any"},
        "1 item is queued and the next resume takes what it has room for | the callback",
    ),
}


@pytest.mark.parametrize("group", ["", "reviews"])
@pytest.mark.parametrize("policy", GROUPS)
def test_what_is_queued_waits_by_the_policy_of_its_group(place: Place, policy: str, group: str) -> None:
    rule, expected = GROUPS[policy]
    root, first, second = place.parent_of("first", "second", waiting={group: rule}, group=group)
    place.finish(first)
    if policy != "any":
        assert place.ledger.flush(root).outcome == "waits"
    expected = expected.replace("its children", f"group {group!r}" if group else "its children")
    assert expected.replace("{child}", second) in place.said(root)


def test_a_session_to_which_nothing_has_come_names_its_children_and_its_deadline(place: Place) -> None:
    waiting = {"": {"mode": "all", "deadline_ms": NOW + 5_000}}
    root, *children = place.parent_of(*"abcde", waiting=waiting)
    place.ledger.flush(root)
    said = place.said(root)
    policy = f"all of its children: 0 are back, 5 are not, until {isoformat(NOW + 5_000)}"
    named = ", ".join(sorted(children)[:3])
    assert said.startswith(f"5 of its children: {named} and 2 more; {policy} | the deadline")
    assert said.endswith(isoformat(NOW + 5_000))


def _doomed_by_a_child(place: Place, held: ClaimedRun) -> None:
    place.commit(held.claim)
    child = place.ledger.items(held.session.id)[0].child
    place.finish(child, "no", status="failed")


def _doomed_by_a_user(place: Place, held: ClaimedRun) -> None:
    place.ledger.stop(held.session.id, "enough")
    place.commit(held.claim)


@pytest.mark.parametrize("doom", [_doomed_by_a_child, _doomed_by_a_user])
def test_a_session_that_is_to_be_ended_says_so_and_is_stuck_while_nobody_ends_it(
    place: Place, doom: Callable[[Place, ClaimedRun], None]
) -> None:
    held, _ = place.parent(on_failure="fail")
    doom(place, held)
    assert place.said(held.session.id).startswith("its own end: ")
    assert place.stuck() == []
    place.ledger.set_time(NOW + 61_000)
    assert any("is to be ended for over a minute" in message for message in place.stuck())


def test_what_could_resume_a_session_and_does_not_is_stuck(place: Place) -> None:
    """Others of its children are still out, which does not matter: it waits for any."""
    _, first, _ = place.parent_of("first", "second")
    place.finish(first)
    place.ledger.set_time(NOW + 61_000)
    assert any("1 item queued for over a minute" in message for message in place.stuck())


def test_a_launch_is_stuck_unless_a_router_holds_it(place: Place) -> None:
    session = place.given()
    place.ledger.set_time(NOW + 61_000)
    assert any("was not routed" in message for message in place.stuck())
    place.redis.hset(ledger_keys.session(session), "parked", "waits for another task")
    assert place.stuck() == []


def test_what_waits_by_policy_is_not_stuck(place: Place) -> None:
    _, first, second = place.parent_of("first", "second", waiting={"": {"mode": "all"}})
    place.finish(first)
    place.run(second)
    place.ledger.set_time(NOW + 61_000)
    assert place.stuck() == []


def test_a_parent_whose_last_callback_was_ignored_runs_once_more(place: Place) -> None:
    root, child = place.parent_of("a", on_failure="ignore")
    place.finish(child, "no", status="failed")
    assert place.said(root).startswith("one more run for its final answer")


def test_a_closed_session_with_children_names_who_deals_with_them(place: Place) -> None:
    held, _ = place.parent()
    place.ledger.stop(held.session.id, "enough", force=True)
    assert place.said(held.session.id).startswith("stopped; children still to be stopped or let go: 2")


def test_a_finished_session_waits_for_nothing_until_a_user_resumes_it(place: Place) -> None:
    session = place.given()
    place.finish(session)
    assert place.why(session) is None
    place.ledger.enqueue(session, "go on", item_id="itm_00a")
    assert place.said(session).startswith("1 item is queued")


@pytest.mark.parametrize("come", [False, True])
def test_every_waiting_policy_under_which_something_is_missing_is_named(place: Place, *, come: bool) -> None:
    """Whether something is queued or nothing has come; and an open question beside them."""
    top = place.run(place.given())
    held = place.run(place.delegate(top, "middle"))
    children = [place.delegate(held, f"{group}{n}", group=group) for group in ("a", "b", "c") for n in (0, 1)]
    question = place.ask_parent(held)
    waiting = {"a": {"mode": "all", "deadline_ms": NOW + 5_000}, "b": {"mode": "quorum", "k": 2}}
    place.commit(held.claim, waiting=waiting)
    if come:
        place.finish(children[0])
        assert place.ledger.flush(held.session.id).outcome == "waits"
    said = place.said(held.session.id)
    back = "1 is back, 1 is not" if come else "0 are back, 2 are not"
    assert f"all of group 'a': {back}, until {isoformat(NOW + 5_000)}" in said
    assert "a quorum of 2 of group 'b': 0 are back, 2 are not" in said
    assert "any of group 'c': 0 are back, 2 are not" in said
    assert f"a reply to its question {question}" in said


def _chain(place: Place, depth: int) -> list[ClaimedRun]:
    """Sessions that wait for one another; the last is at work, and nothing has been committed yet."""
    held = [place.run(place.given())]
    for _ in range(depth):
        held.append(place.run(place.delegate(held[-1], "down")))
    return held


def test_why_goes_down_to_the_session_that_holds_everything_up(place: Place) -> None:
    top, middle, leaf = _chain(place, 2)
    beside = place.delegate(middle, "beside")
    for held in (top, middle):
        place.commit(held.claim, waiting={"": {"mode": "all"}})
    steps = place.doctor.held_up_by(top.session.id)
    assert [step.session.id for step in steps] == [middle.session.id, beside]
    place.finish(beside)
    steps = place.doctor.held_up_by(top.session.id)
    assert [step.session.id for step in steps] == [middle.session.id, leaf.session.id]
    assert steps[-1].wait is not None
    assert "is at work in" in steps[-1].wait.waits_for
    done = place.orchestra("why", top.session.id)
    lines = done.stdout.splitlines()
    assert (
        f"held up by {leaf.session.id} (reviewer) is running: agent 'reviewer' is at work in" in done.stdout
    )
    assert lines[-2].startswith("  moved by:  its agent, or the reaper")


def test_why_goes_by_calls_and_questions_and_never_in_a_circle(place: Place) -> None:
    """A child asks its parent, which is in a call of that child: neither can move."""
    top, child = _chain(place, 1)
    question = place.ask_parent(child)
    place.ledger.claim_item(child.claim, reply_id(question), waits="wait")
    place.ledger.claim_item(top.claim, callback_id(child.session.id), waits="wait")
    assert [step.session.id for step in place.doctor.held_up_by(top.session.id)] == [child.session.id]
    assert [step.session.id for step in place.doctor.held_up_by(child.session.id)] == [top.session.id]
    place.ledger.set_time(NOW + 61_000)
    assert "wait-circle" in {one.rule for one in place.doctor.examine(watch_leases=False).findings}
