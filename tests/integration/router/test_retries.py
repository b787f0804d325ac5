"""Messages that cannot be accepted yet: tried again durably, then given up and reported."""

from __future__ import annotations

import shutil

import pytest

from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope.bodies import (
    ErrorReport,
    Message,
    StatusUpdate,
    Task,
    TaskCompletion,
    TaskDelegation,
)
from orchestrator.envelope.model import AgentMessage, RetryPolicy
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
from tests.integration.router.conftest import At, Stack

LATER = AgentRecord(name="later", role="specialist")
TASK = TaskDelegation(task=Task(task_id="t-1", title="t", description="d"))
SLOW = RetryPolicy(max_attempts=3, backoff_strategy="linear", timeout_seconds=30)


def errors(stack: Stack) -> list[AgentMessage]:
    """The errors that were published."""
    found = [check(data).message for data in stack.published("error")]
    assert None not in found
    return [message for message in found if message is not None]


def test_an_agent_that_is_registered_later_gets_its_task(stack: Stack) -> None:
    """The delegation waits, outside of any process, and is carried out when its agent is there."""
    session = stack.submit(agent="later")
    handled = stack.router("one").run_once()
    assert (handled.parked, handled.dead, stack.pending()) == (1, 0, 0)
    (waiting,) = stack.delayed.all()
    assert (waiting.attempt, waiting.rule, waiting.tasks) == (2, "recipient-unknown", ())
    assert stack.parts.ledger.session(session).parked.startswith("no agent 'later' is registered")
    stack.parts.agents.announce([LATER])
    stack.wake()
    handled = stack.router("two").run_once()
    assert (handled.done, stack.dead()) == (1, [])
    assert (stack.parts.ledger.session(session).busy, stack.parts.ledger.session(session).parked) == (
        True,
        "",
    )


def test_the_last_attempt_counts_as_much_as_the_first(stack: Stack) -> None:
    """A message that waited more than once is carried out, not taken for a copy of itself."""
    session = stack.submit(agent="later")
    for number in range(2):
        assert stack.router(str(number)).run_once().parked == 1
        stack.wake()
    stack.parts.agents.announce([LATER])
    handled = stack.router("last").run_once()
    assert (handled.done, handled.duplicates) == (1, 0)
    assert stack.parts.ledger.session(session).busy


def test_when_attempts_are_used_up_the_session_fails_and_the_path_hears_of_it(stack: Stack) -> None:
    """Three attempts in all; then a dead letter, a failed session, and errors to the sender and upwards."""
    session = stack.submit(agent="nobody")
    router = stack.router()
    for _ in range(2):
        assert router.run_once().parked == 1
        stack.wake()
    handled = router.run_once()
    (letter,) = stack.dead()
    assert (handled.dead, letter.attempts, letter.rule) == (1, 3, "recipient-unknown")
    state, reason = stack.parts.ledger.result(session)
    assert state == SessionState.FAILED
    assert "no agent 'nobody' is registered" in str(reason)
    heard = [message.header.recipient.agent_name for message in errors(stack)]
    assert heard == ["operator"]
    body = errors(stack)[0].body
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
    stack: Stack, escalates_to: str, crew: tuple[str, ...], told: list[str]
) -> None:
    """Its sender, and the next one up its path who is there: by its settings, its coordinator, the tech-lead, the operator."""
    parts = stack.parts
    parts.agents.announce([AgentRecord(name="worker", role="specialist", escalates_to=escalates_to)])
    launch, conversation = new_message_id(), new_message_id()
    task = stack.envelope(
        TASK, recipient="worker", message_id=launch, correlation=conversation, sender="lead"
    )
    parts.agents.announce([AgentRecord(name="lead", role="coordinator", executor="foreign")])
    stack.publish(task, "task-delegation", "high")
    assert stack.router("one").run_once().done == 1
    once = RetryPolicy(max_attempts=1, backoff_strategy="linear", timeout_seconds=60)
    lost = stack.envelope(
        Message(content="x"),
        sender="worker",
        recipient="nobody",
        correlation=conversation,
        chain=(launch,),
        retry=once,
    )
    for name in crew:
        stack.redis.delete(keys.agent(name))
    stack.publish(lost, "message")
    assert stack.router("two").run_once().dead == 1
    assert [message.header.recipient.agent_name for message in errors(stack)] == told


def test_a_wait_never_goes_past_the_expiration(stack: Stack) -> None:
    """A message that would be expired by its next attempt is given up at once."""
    now_ms = int(stack.redis.time()[0]) * 1000
    data = stack.envelope(
        Message(content="x"), recipient="nobody", expiration=Timestamp.from_ms(now_ms + 1500), retry=SLOW
    )
    stack.publish(data, "message")
    router = stack.router(clock=At(now_ms))
    router.run_once()
    stack.wake()
    assert (router.run_once().dead, stack.dead()[0].attempts) == (1, 2)


def test_waiting_survives_the_router_and_ends_by_itself(stack: Stack) -> None:
    """Another router takes the message up when it is due; nothing sleeps meanwhile."""
    policy = RetryPolicy(max_attempts=2, backoff_strategy="exponential", timeout_seconds=30)
    stack.publish(stack.envelope(Message(content="x"), recipient="later", retry=policy), "message")
    stack.router("one", jitter=lambda: 0.05).run_once()
    stack.parts.agents.announce([LATER])
    other = stack.router("two")
    done = 0
    while not done:
        done = other.run_once(block_ms=20).done
    assert (done, stack.delayed.all(), stack.dead()) == (1, [], [])


def test_a_router_that_comes_too_late_parks_nothing(stack: Stack) -> None:
    """Neither while the message waits, nor when it is back in its stream, where it would be twice."""
    stack.streams.ensure_groups([ROUTER_GROUP], [stream := StreamId(0, "message", "normal")])
    stack.publish(stack.envelope(Message(content="x")), "message")
    (entry,) = stack.streams.read(ROUTER_GROUP, "slow", [Portion([stream], 1)])
    message = check(entry.data or b"").message
    assert message is not None

    def park() -> bool:
        return stack.delayed.park(entry, message, Wait(due_ms=0), attempt=2, now_ms=0, rule="r", reason="r")

    assert [park(), park()] == [True, False]
    stack.wake()
    assert not park()
    assert stack.delayed.all() == []


def test_a_copy_of_a_message_that_waited_has_no_second_effect(stack: Stack) -> None:
    """The mark names the entry that the message came back under."""
    session = stack.submit(agent="later")
    (copy,) = stack.published("task-delegation")
    stack.router().run_once()
    stack.parts.agents.announce([LATER])
    stack.wake()
    stack.publish(copy, "task-delegation", "high")
    handled = stack.router("two").run_once()
    assert (handled.done, handled.duplicates, len(stack.parts.ledger.runs(session))) == (1, 1, 1)


def test_what_no_router_took_in_time_is_given_up_as_timed_out(stack: Stack) -> None:
    """Beyond the timeout of its last attempt a message is a dead letter of type timeout, in the path too."""
    policy = RetryPolicy(max_attempts=1, backoff_strategy="linear", timeout_seconds=1)
    data = stack.envelope(TASK, recipient="reviewer", retry=policy)
    entry = stack.publish(data, "task-delegation", "high")
    later_ms = int(entry.partition("-")[0]) + 1500
    stack.router(clock=At(later_ms)).run_once()
    assert [(letter.rule, letter.attempts) for letter in stack.dead()] == [("timeout", 1)]
    bodies = [message.body for message in errors(stack)]
    assert [body.error_type for body in bodies if isinstance(body, ErrorReport)] == ["timeout", "timeout"]


@pytest.mark.parametrize("sender", ["lead", "partner"])
def test_only_what_is_not_in_the_ledger_yet_can_be_late(stack: Stack, sender: str) -> None:
    """What our own agents report was accepted when they reported it; an external program's word was not."""
    update = StatusUpdate(task_id="t", status="in-progress")
    correlation = derived_uuid("test", sender)
    entry = stack.publish(stack.envelope(update, sender=sender, correlation=correlation), "status-update")
    handled = stack.router(clock=At(int(entry.partition("-")[0]) + 121_000)).run_once()
    assert (handled.done, handled.dead) == ((1, 0) if sender == "lead" else (0, 1))


def test_a_session_that_is_not_known_yet_is_waited_for_within_the_attempt(stack: Stack) -> None:
    """What a message names may be on its way; looking for it for a moment costs no attempt."""
    done = TaskCompletion(task_id="T-9", status="success", summary="done")
    entry = stack.publish(stack.envelope(done, sender="partner"), "task-completion", "high")
    now_ms = int(entry.partition("-")[0])
    stack.router("one", clock=At(now_ms)).run_once()
    (waiting,) = stack.delayed.all()
    assert (waiting.attempt, waiting.rule, waiting.due_ms) == (1, "session-unknown", now_ms + 100)
    stack.wake()
    stack.router("two", clock=At(now_ms + 4000)).run_once()
    (waiting,) = stack.delayed.all()
    assert (waiting.attempt, waiting.due_ms) == (1, now_ms + 8000)
    stack.wake()
    assert stack.router("three", clock=At(now_ms + 10_000)).run_once().dead == 1


def test_an_old_message_cannot_pass_for_one_that_waited(stack: Stack) -> None:
    """What a program may write beside an envelope proves nothing; the mark of a message that waited does."""
    past = Timestamp("2020-01-01T00:00:00Z")
    stack.publish(stack.envelope(Message(content="x"), timestamp=past), "message", extra={"attempt": "2"})
    stack.router().run_once()
    assert [letter.rule for letter in stack.dead()] == ["too-old"]


def test_what_was_given_up_may_be_sent_again(stack: Stack) -> None:
    """Nothing came of it, however often it was tried: the same message, sent again, is no duplicate of itself."""
    data = stack.envelope(Message(content="x"), recipient="later")
    stack.publish(data, "message")
    router = stack.router("one", jitter=lambda: 0.0)
    while not router.run_once().dead:
        pass
    stack.parts.agents.announce([LATER])
    stack.publish(data, "message")
    handled = stack.router("two").run_once()
    assert (handled.duplicates, handled.parked, len(stack.dead())) == (0, 0, 1)


def test_a_replay_of_what_was_accepted_meanwhile_has_no_second_effect(stack: Stack) -> None:
    """Its sender sent it again by itself, before somebody replayed the dead letter as it was."""
    data = stack.envelope(TASK, sender="partner", recipient="later")
    stack.publish(data, "task-delegation", "high")
    router = stack.router("one", jitter=lambda: 0.0)
    while not router.run_once().dead:
        pass
    stack.parts.agents.announce([LATER])
    stack.publish(data, "task-delegation", "high")
    stack.router("two").run_once()
    assert len(stack.sent.runs) == 1
    shutil.rmtree(stack.settings.keys_dir / "current")  # the private key of its sender is elsewhere
    (dead,) = stack.dead()
    assert Replays(stack.parts).replay(dead).how == "copy"  # type: ignore[union-attr]
    assert stack.router("three").run_once().duplicates == 1
    assert len(stack.parts.ledger.roots(0)) == 1


def patient(stack: Stack) -> None:
    """As the settings are by default: an attempt waits for an agent that may be starting."""
    stack.settings = stack.settings.model_copy(update={"registration_patience_s": 20})


def test_a_worker_that_is_starting_costs_no_attempt(stack: Stack) -> None:
    """The task waits for its agent within the first attempt and begins as soon as it is registered."""
    patient(stack)
    session = stack.submit(agent="later")
    now_ms = int(stack.redis.time()[0]) * 1000
    for waited_ms in (0, 5_000, 19_000):
        router = stack.router(str(waited_ms), clock=At(now_ms + waited_ms))
        router.run_once()
        (waiting,) = stack.delayed.all()
        assert (waiting.attempt, waiting.agent, waiting.due_ms) == (1, "later", now_ms + waited_ms + 500)
        assert stack.parts.ledger.session(session).parked.startswith("no agent 'later' is registered")
    stack.parts.agents.announce([LATER])
    router = stack.router("last", clock=At(now_ms + 19_500))
    router.run_once(), router.run_once()
    assert (stack.parts.ledger.session(session).busy, stack.dead()) == (True, [])


def test_an_agent_that_never_comes_fails_the_task_within_the_patience_and_names_those_that_are_there(
    stack: Stack,
) -> None:
    """Twenty seconds in all, not for each attempt; or the timeout of an attempt if that is shorter."""
    patient(stack)
    stack.submit(agent="nobody")
    hasty = RetryPolicy(max_attempts=1, backoff_strategy="linear", timeout_seconds=2)
    stack.publish(stack.envelope(Message(content="x"), recipient="nobody", retry=hasty), "message")
    now_ms = int(stack.redis.time()[0]) * 1000
    died = {}
    for second in range(70):
        router = stack.router(str(second), clock=At(now_ms + second * 1000), jitter=lambda: 0.0)
        for _ in range(3):
            router.run_once()
        for letter in stack.dead():
            died.setdefault((letter.type, letter.attempts), second)
    assert died == {("message", 1): 2, ("task-delegation", 1): 20}
    assert "(registered: code-reviewer, lead, partner, reviewer, tech-lead)" in stack.dead()[1].reason


def test_a_task_for_a_name_that_is_almost_right_says_which_was_probably_meant(stack: Stack) -> None:
    session = stack.submit(agent="reviewr")
    router = stack.router()
    for _ in range(3):
        router.run_once()
        stack.wake()
    _, reason = stack.parts.ledger.result(session)
    assert "no agent 'reviewr' is registered (did you mean 'reviewer'? registered: " in str(reason)


def test_a_run_of_an_agent_that_nobody_registers_any_more_waits_for_it_at_no_queue(stack: Stack) -> None:
    """Router, services and sweep do the same: nobody is told of it, and soon after the agent is back its workers are."""
    parts, ledger = stack.parts, stack.parts.ledger
    parts.__dict__["dispatcher"] = stack.sent
    session = stack.submit(agent="reviewer")
    stack.router().run_once()
    run = ledger.session(session).run
    assert stack.sent.wakeups == [("reviewer", "reviews")]
    stack.sent.wakeups.clear()
    parts.agents.withdraw("reviewer")
    reaper = Reaper(ledger, parts.delivery, settle=parts.settle, wake=parts.wake, agents=parts.agents.names)
    for _ in range(10):
        ledger.set_time(ledger.server_ms() + ledger.limits.redispatch_ms)
        reaper.run_once()
    assert (
        hand_over(
            [RunRef(run=run, session=session, agent="reviewer", cause="start")],
            ledger=ledger,
            agents=parts.agents,
        )
        == []
    )
    assert stack.sent.wakeups == []
    parts.agents.announce([AgentRecord(name="reviewer", queue="elsewhere")])
    ledger.set_time(ledger.server_ms() + 100_000)
    reaper.run_once()
    assert stack.sent.wakeups == [("reviewer", "elsewhere")]
    assert ledger.sweep.ready(0, ["reviewer"]) == {"reviewer": 1}


def test_the_wait_for_an_agent_ends_with_the_expiration(stack: Stack) -> None:
    """The message is expired then, and says so."""
    patient(stack)
    now_ms = int(stack.redis.time()[0]) * 1000
    soon = Timestamp.from_ms(now_ms + 3000)
    stack.publish(stack.envelope(Message(content="x"), recipient="nobody", expiration=soon), "message")
    for waited_ms in (0, 2500, 3500):
        stack.router(str(waited_ms), clock=At(now_ms + waited_ms)).run_once()
        stack.router(f"{waited_ms}+", clock=At(now_ms + waited_ms)).run_once()
    assert [letter.rule for letter in stack.dead()] == ["expired"]


def test_a_message_that_waited_until_it_was_old_is_carried_out(stack: Stack) -> None:
    """The mark that it was given when it was put back bears out that it was accepted in time."""
    stack.settings = stack.settings.model_copy(update={"message_max_age_s": 60})
    entry = stack.publish(stack.envelope(Message(content="x"), recipient="later"), "message")
    assert stack.router("one").run_once().parked == 1
    stack.parts.agents.announce([LATER])
    stack.wake()
    handled = stack.router("two", clock=At(int(entry.partition("-")[0]) + 90_000)).run_once()
    assert (handled.done, stack.dead()) == (1, [])
