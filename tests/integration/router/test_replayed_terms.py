"""What a session was given stands in the message that begins it: a replay of a dead letter gives the new session the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.client.client import Client
from orchestrator.envelope.bodies import BudgetLimits, LaunchTerms, TaskDelegation
from orchestrator.envelope.codec import decode
from orchestrator.operations.table import SUBMIT
from orchestrator.operations.values import Mark
from orchestrator.policy.budget import NANO
from tests.integration.router.conftest import Ahead, Stack
from tests.integration.router.test_replay_verifies import sessions, unsigned, work

OPTIONS: dict[str, Any] = {
    "title": "the numbers",
    "budget": "requests=7, tokens=120000, usd=2.5",
    "task": {"description": "add them up", "objectives": [{"text": "a sum"}], "task_type": "analysis"},
    "priority": "low",
    "retry_policy": {"max_attempts": 2, "backoff_strategy": "linear", "timeout_seconds": 20},
    "time_limit_s": 90,
    "expires_s": 3600,
}
MUCH = LaunchTerms(budget=BudgetLimits(tokens=10**12), plan=True, time_limit_ms=10**6)
LONG, RICH = LaunchTerms(time_limit_ms=10**15 - 1), LaunchTerms(budget=BudgetLimits(nano_usd=10**16 - 1))


def too_late(stack: Stack) -> None:
    """A router takes what is there forty days after it was sent."""
    clock = Ahead(stack.redis)
    clock.skip(40 * 86_400_000)
    stack.router("late", clock=clock).run_once()
    assert len(stack.dead()) == 1


def replayed(stack: Stack) -> str:
    """The session that the replay of the only dead letter makes."""
    before = set(sessions(stack))
    assert stack.run("dlq", "replay", "--all", "--json").exit_code == 0
    return next(iter(set(sessions(stack)) - before))


def test_a_replayed_session_has_what_the_old_one_was_given(stack: Stack) -> None:
    """Every option of a submit that says something of the session: a new one belongs among these, too."""
    told = {name for name, marks in SUBMIT.marks.items() if Mark.THIS_CALL not in marks}
    assert OPTIONS.keys() | {"agent", "prompt"} == told
    client = Client(parts=stack.parts)
    old = client.submit("reviewer", **OPTIONS).id
    too_late(stack)
    new = replayed(stack)
    limits = {"requests": 7, "tokens": 120_000, "nano": round(2.5 * NANO)}
    assert client.budgets(new)[new].limits == limits
    given, kept = (client.session(session).options for session in (old, new))
    assert kept == given, "name what the message does not repeat in `messages.factory.IN_MESSAGES`"
    assert f"with {kept}" in stack.run("logs", new).stdout
    first, message = map(decode, stack.published("task-delegation"))
    header, body = message.header, message.body
    assert isinstance(body, TaskDelegation)
    assert (body.task.title, header.priority, body.launch) == (
        "the numbers",
        "low",
        dict(first.body)["launch"],
    )
    assert header.retry_policy == first.header.retry_policy
    assert header.expiration
    assert header.expiration.instant_ms - header.timestamp.instant_ms == 3_600_000
    stack.router("again").run_once()
    held = stack.claim(new)
    assert json.loads(held.task)["objectives"] == [{"text": "a sum"}]
    assert "Objectives:\n- a sum" in held.prompt
    assert f"limit|{new}".encode() in dict(stack.redis.zscan_iter("ao:{00}:timers"))


def test_a_plan_stays_a_plan_and_has_a_budget(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session carries it out. A replay gave it as a prompt to the agent, and no budget."""
    client = Client(parts=stack.parts)
    client.submit_plan('[{"sequence": 1, "role": "reviewer", "caller": null, "task": "look"}]', agent="lead")
    too_late(stack)
    monkeypatch.setenv("ORCHESTRA_TREE_BUDGET", "tokens=5")
    new = client.session(replayed(stack))
    assert (new.planned, client.budgets(new.id)[new.id].limits) == (True, {"tokens": 5})


@pytest.mark.parametrize(("terms", "signed"), [(MUCH, False), (LONG, True), (RICH, True)])
def test_strangers_give_only_a_task_and_nobody_too_much(
    stack: Stack, terms: LaunchTerms, signed: bool
) -> None:
    """The operator who signs a task that does not verify signs no budget and no plan."""
    body = work("stolen", "do this").model_copy(update={"launch": terms})
    parties = {"sender": "operator", "recipient": "reviewer"}
    data = stack.envelope(body, **parties) if signed else unsigned(stack, body, **parties)
    stack.publish(data, "task-delegation", "high")
    too_late(stack)
    result = stack.run("dlq", "replay", stack.dead()[0].id, *([] if signed else ["--sign-unverified"]))
    if signed:
        assert (result.exit_code, "cannot be replayed" in result.stderr) == (2, True)
        assert (sessions(stack), len(stack.dead())) == ([], 1)
    else:
        session = stack.parts.ledger.session(sessions(stack)[0])
        assert (session.planned, session.budgets) == (False, ())
