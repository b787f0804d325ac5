"""Messages that cannot be accepted yet: tried again durably, then given up and reported."""

from __future__ import annotations

import shutil

import pytest

from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope.bodies import (
    ErrorReport,
    Message,
    StatusUpdate,
    TaskCompletion,
)
from orchestrator.envelope.model import RetryPolicy
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.validate import check
from orchestrator.ids import derived_uuid, new_message_id
from orchestrator.ledger import RunRef, SessionState
from orchestrator.reconciler.delivery import hand_over
from orchestrator.reconciler.reaper import Reaper
from orchestrator.redisdb import keys
from orchestrator.router.deadletters.replay import Replays
from orchestrator.router.delayed.parked import Wait
from orchestrator.streams import ROUTER_GROUP, Portion, StreamId
from tests.clock import At, ManualClock
from tests.integration.router.conftest import LATER, ONCE, errors, rounds, route_until_dead, task
from tests.kit import Kit

SLOW = RetryPolicy(max_attempts=3, backoff_strategy="linear", timeout_seconds=30)


def test_an_agent_that_is_registered_later_gets_its_task(kit: Kit) -> None:
    """The delegation waits, outside of any process, and is carried out when its agent is there."""
    session = kit.send(agent="later")
    handled = kit.route("one")
    assert (handled.parked, handled.dead, kit.pending()) == (1, 0, 0)
    (waiting,) = kit.delayed.all()
    assert (waiting.attempt, waiting.rule, waiting.tasks) == (2, "recipient-unknown", ())
    assert kit.ledger.session(session).parked.startswith("no agent 'later' is registered")
    kit.parts.agents.announce([LATER])
    kit.wake()
    handled = kit.route("two")
    assert (handled.done, kit.dead()) == (1, [])
    assert (kit.ledger.session(session).busy, kit.ledger.session(session).parked) == (
        True,
        "",
    )


def test_the_last_attempt_counts_as_much_as_the_first(kit: Kit) -> None:
    """A message that waited more than once is carried out, not taken for a copy of itself."""
    session = kit.send(agent="later")
    for number in range(2):
        assert kit.route(str(number)).parked == 1
        kit.wake()
    kit.parts.agents.announce([LATER])
    handled = kit.route("last")
    assert (handled.done, handled.duplicates) == (1, 0)
    assert kit.ledger.session(session).busy


def test_when_attempts_are_used_up_the_session_fails_and_the_path_hears_of_it(kit: Kit) -> None:
    """Three attempts in all; then a dead letter, a failed session, and errors to the sender and upwards."""
    session = kit.send(agent="nobody")
    router = kit.router()
    for _ in range(2):
        assert router.run_once().parked == 1
        kit.wake()
    handled = router.run_once()
    (letter,) = kit.dead()
    assert (handled.dead, letter.attempts, letter.rule) == (1, 3, "recipient-unknown")
    state, reason = kit.ledger.result(session)
    assert state == SessionState.FAILED
    assert "no agent 'nobody' is registered" in str(reason)
    heard = [message.header.recipient.agent_name for message in errors(kit)]
    assert heard == ["operator"]
    body = errors(kit)[0].body
    assert isinstance(body, ErrorReport)
    assert (body.error_type, body.severity, body.recommended_action) == (
        "validation-error",
        "critical",
        "retry",
    )
    assert "after 3 attempts" in body.message
    assert body.recovery_options


@pytest.mark.parametrize(
    ("escalates_to", "crew", "told"),
    [
        ("", (), ["worker", "lead"]),  # a specialist's coordinator
        ("tech-lead", (), ["worker", "tech-lead"]),  # its own settings come first
        ("gone", ("lead",), ["worker", "tech-lead"]),  # who is not there is passed over
        ("gone", ("lead", "tech-lead"), ["worker", "operator"]),
    ],
)
def test_who_hears_of_a_message_that_is_given_up(
    kit: Kit, escalates_to: str, crew: tuple[str, ...], told: list[str]
) -> None:
    """Its sender, and the next one up its path who is there: by its settings, its coordinator, the tech-lead, the operator."""
    kit.parts.agents.announce([AgentRecord(name="worker", role="specialist", escalates_to=escalates_to)])
    launch, conversation = new_message_id(), new_message_id()
    kit.post(task(), recipient="worker", message_id=launch, correlation=conversation)
    kit.parts.agents.announce([AgentRecord(name="lead", role="coordinator", executor="foreign")])
    assert kit.route("one").done == 1
    about = {"correlation": conversation, "chain": (launch,), "retry": ONCE}
    kit.post(Message(content="x"), sender="worker", recipient="nobody", **about)
    for name in crew:
        kit.redis.delete(keys.agent(name))
    assert kit.route("two").dead == 1
    assert [message.header.recipient.agent_name for message in errors(kit)] == told


def test_a_wait_never_goes_past_the_expiration(kit: Kit) -> None:
    """A message that would be expired by its next attempt is given up at once."""
    now_ms = kit.now_ms
    kit.post(
        Message(content="x"), recipient="nobody", expiration=Timestamp.from_ms(now_ms + 1500), retry=SLOW
    )
    router = kit.router(clock=At(now_ms))
    router.run_once()
    kit.wake()
    assert (router.run_once().dead, kit.dead()[0].attempts) == (1, 2)


def test_waiting_survives_the_router_and_ends_by_itself(kit: Kit) -> None:
    """Another router takes the message up when it is due; nothing sleeps meanwhile."""
    policy = RetryPolicy(max_attempts=2, backoff_strategy="exponential", timeout_seconds=30)
    kit.post(Message(content="x"), recipient="later", retry=policy)
    kit.route("one", jitter=lambda: 0.05)
    kit.parts.agents.announce([LATER])
    other = kit.router("two")
    done = 0
    while not done:
        done = other.run_once(block_ms=20).done
    assert (done, kit.delayed.all(), kit.dead()) == (1, [], [])


def test_a_router_that_comes_too_late_parks_nothing(kit: Kit) -> None:
    """Neither while the message waits, nor when it is back in its stream, where it would be twice."""
    kit.streams.ensure_groups([ROUTER_GROUP], [stream := StreamId(0, "message", "normal")])
    kit.post(Message(content="x"))
    (entry,) = kit.streams.read(ROUTER_GROUP, "slow", [Portion([stream], 1)])
    message = check(entry.data or b"").message
    assert message is not None

    def park() -> bool:
        return kit.delayed.park(entry, message, Wait(due_ms=0), attempt=2, now_ms=0, rule="r", reason="r")

    assert [park(), park()] == [True, False]
    kit.wake()
    assert not park()
    assert kit.delayed.all() == []


def test_a_copy_of_a_message_that_waited_has_no_second_effect(kit: Kit) -> None:
    """The mark names the entry that the message came back under."""
    session = kit.send(agent="later")
    (copy,) = kit.published("task-delegation")
    kit.route()
    kit.parts.agents.announce([LATER])
    kit.wake()
    kit.publish(copy, "task-delegation", "high")
    handled = kit.route("two")
    assert (handled.done, handled.duplicates, len(kit.ledger.runs(session))) == (1, 1, 1)


def test_what_no_router_took_in_time_is_given_up_as_timed_out(kit: Kit) -> None:
    """Beyond the timeout of its last attempt a message is a dead letter of type timeout, in the path too."""
    policy = RetryPolicy(max_attempts=1, backoff_strategy="linear", timeout_seconds=1)
    data = kit.envelope(task(), recipient="reviewer", retry=policy)
    entry = kit.publish(data, "task-delegation", "high")
    later_ms = int(entry.partition("-")[0]) + 1500
    kit.route(clock=At(later_ms))
    assert [(letter.rule, letter.attempts) for letter in kit.dead()] == [("timeout", 1)]
    bodies = [message.body for message in errors(kit)]
    assert [body.error_type for body in bodies if isinstance(body, ErrorReport)] == ["timeout", "timeout"]


@pytest.mark.parametrize("sender", ["lead", "partner"])
def test_only_what_is_not_in_the_ledger_yet_can_be_late(kit: Kit, sender: str) -> None:
    """What our own agents report was accepted when they reported it; an external program's word was not."""
    update = StatusUpdate(task_id="t", status="in-progress")
    correlation = derived_uuid("test", sender)
    entry = kit.publish(kit.envelope(update, sender=sender, correlation=correlation), "status-update")
    handled = kit.route(clock=At(int(entry.partition("-")[0]) + 121_000))
    assert (handled.done, handled.dead) == ((1, 0) if sender == "lead" else (0, 1))


def test_a_session_that_is_not_known_yet_is_waited_for_within_the_attempt(kit: Kit) -> None:
    """What a message names may be on its way; looking for it for a moment costs no attempt."""
    done = TaskCompletion(task_id="T-9", status="success", summary="done")
    entry = kit.publish(kit.envelope(done, sender="partner"), "task-completion", "high")
    now_ms = int(entry.partition("-")[0])
    kit.route("one", clock=At(now_ms))
    (waiting,) = kit.delayed.all()
    assert (waiting.attempt, waiting.rule, waiting.due_ms) == (1, "session-unknown", now_ms + 100)
    kit.wake()
    kit.route("two", clock=At(now_ms + 4000))
    (waiting,) = kit.delayed.all()
    assert (waiting.attempt, waiting.due_ms) == (1, now_ms + 8000)
    kit.wake()
    assert kit.route("three", clock=At(now_ms + 10_000)).dead == 1


def test_an_old_message_cannot_pass_for_one_that_waited(kit: Kit) -> None:
    """What a program may write beside an envelope proves nothing; the mark of a message that waited does."""
    past = Timestamp("2020-01-01T00:00:00Z")
    kit.publish(kit.envelope(Message(content="x"), timestamp=past), "message", extra={"attempt": "2"})
    kit.route()
    assert [letter.rule for letter in kit.dead()] == ["too-old"]


def test_what_was_given_up_may_be_sent_again(kit: Kit) -> None:
    """Nothing came of it, however often it was tried: the same message, sent again, is no duplicate of itself."""
    data = kit.post(Message(content="x"), recipient="later")
    route_until_dead(kit, "one")
    kit.parts.agents.announce([LATER])
    kit.publish(data, "message")
    handled = kit.route("two")
    assert (handled.duplicates, handled.parked, len(kit.dead())) == (0, 0, 1)


def test_a_replay_of_what_was_accepted_meanwhile_has_no_second_effect(kit: Kit) -> None:
    """Its sender sent it again by itself, before somebody replayed the dead letter as it was."""
    data = kit.post(task(), sender="partner", recipient="later")
    route_until_dead(kit, "one")
    kit.parts.agents.announce([LATER])
    kit.publish(data, "task-delegation", "high")
    kit.route("two")
    assert len(kit.sent.runs) == 1
    shutil.rmtree(kit.settings.keys_dir / "current")  # the private key of its sender is elsewhere
    (dead,) = kit.dead()
    assert Replays(kit.parts).replay(dead).how == "copy"  # type: ignore[union-attr]
    assert kit.route("three").duplicates == 1
    assert len(kit.ledger.roots(0)) == 1


def test_a_worker_that_is_starting_costs_no_attempt(kit: Kit) -> None:
    """The task waits for its agent within the first attempt and begins as soon as it is registered."""
    kit = kit.beside(registration_patience_s=20)  # as it is by default
    session = kit.send(agent="later")
    now_ms = kit.now_ms
    for waited_ms in (0, 5_000, 19_000):
        kit.route(str(waited_ms), clock=At(now_ms + waited_ms))
        (waiting,) = kit.delayed.all()
        assert (waiting.attempt, waiting.agent, waiting.due_ms) == (1, "later", now_ms + waited_ms + 500)
        assert kit.ledger.session(session).parked.startswith("no agent 'later' is registered")
    kit.parts.agents.announce([LATER])
    rounds(kit.router("last", clock=At(now_ms + 19_500)))
    assert (kit.ledger.session(session).busy, kit.dead()) == (True, [])


def test_an_agent_that_never_comes_fails_the_task_within_the_patience_and_names_those_that_are_there(
    kit: Kit,
) -> None:
    """Twenty seconds in all, not for each attempt; or the timeout of an attempt if that is shorter."""
    kit = kit.beside(registration_patience_s=20)  # as it is by default
    kit.send(agent="nobody")
    hasty = RetryPolicy(max_attempts=1, backoff_strategy="linear", timeout_seconds=2)
    kit.post(Message(content="x"), recipient="nobody", retry=hasty)
    clock = ManualClock(kit.now_ms)
    router, died = kit.router(clock=clock, jitter=lambda: 0.0), {}
    for second in range(70):
        rounds(router, 3)
        for letter in kit.dead():
            died.setdefault((letter.type, letter.attempts), second)
        clock.advance(1)
    assert died == {("message", 1): 2, ("task-delegation", 1): 20}
    assert "(registered: code-reviewer, lead, partner, reviewer, tech-lead)" in kit.dead()[1].reason


def test_a_task_for_a_name_that_is_almost_right_says_which_was_probably_meant(kit: Kit) -> None:
    session = kit.send(agent="reviewr")
    router = kit.router()
    for _ in range(3):
        router.run_once()
        kit.wake()
    _, reason = kit.ledger.result(session)
    assert "no agent 'reviewr' is registered (did you mean 'reviewer'? registered: " in str(reason)


def test_a_run_of_an_agent_that_nobody_registers_any_more_waits_for_it_at_no_queue(kit: Kit) -> None:
    """Router, services and sweep do the same: nobody is told of it, and soon after the agent is back its workers are."""
    parts, ledger = kit.parts, kit.ledger
    parts.__dict__["dispatcher"] = kit.sent
    session = kit.send(agent="reviewer")
    kit.route()
    run = ledger.session(session).run
    assert kit.sent.wakeups == [("reviewer", "reviews")]
    kit.sent.wakeups.clear()
    parts.agents.withdraw("reviewer")
    reaper = Reaper(ledger, parts.delivery, settle=parts.settle, wake=parts.wake, agents=parts.agents.names)
    for _ in range(10):
        ledger.set_time(ledger.server_ms() + ledger.limits.redispatch_ms)
        reaper.run_once()
    ready = RunRef(run=run, session=session, agent="reviewer", cause="start")
    assert hand_over([ready], ledger=ledger, agents=parts.agents) == []
    assert kit.sent.wakeups == []
    parts.agents.announce([AgentRecord(name="reviewer", queue="elsewhere")])
    ledger.set_time(ledger.server_ms() + 100_000)
    reaper.run_once()
    assert kit.sent.wakeups == [("reviewer", "elsewhere")]
    assert ledger.sweep.ready(0, ["reviewer"]) == {"reviewer": 1}


def test_the_wait_for_an_agent_ends_with_the_expiration(kit: Kit) -> None:
    """The message is expired then, and says so."""
    kit = kit.beside(registration_patience_s=20)  # as it is by default
    now_ms = kit.now_ms
    soon = Timestamp.from_ms(now_ms + 3000)
    kit.post(Message(content="x"), recipient="nobody", expiration=soon)
    for waited_ms in (0, 2500, 3500):
        rounds(kit.router(str(waited_ms), clock=At(now_ms + waited_ms)))
    assert [letter.rule for letter in kit.dead()] == ["expired"]


def test_a_message_that_waited_until_it_was_old_is_carried_out(kit: Kit) -> None:
    """The mark that it was given when it was put back bears out that it was accepted in time."""
    kit = kit.beside(message_max_age_s=60)
    entry = kit.publish(kit.envelope(Message(content="x"), recipient="later"), "message")
    assert kit.route("one").parked == 1
    kit.parts.agents.announce([LATER])
    kit.wake()
    handled = kit.route("two", clock=At(int(entry.partition("-")[0]) + 90_000))
    assert (handled.done, kit.dead()) == (1, [])
