"""A launch that no router carries out ends its session, for whatever reason: its parent hears of it, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope.bodies import EscalationMatter, Message, Review, TaskCompletion
from orchestrator.ledger import ClaimedRun, ItemState, SessionState
from orchestrator.redisdb import ledger_keys
from orchestrator.router.router import Router
from tests.integration.router.conftest import sweep_until
from tests.kit import Kit

#: A description that makes an envelope larger than any router parses.
HUGE = "x" * (9 << 20)


def at_work(kit: Kit, agent: str) -> ClaimedRun:
    """A root session of an agent, claimed."""
    root = kit.send(agent=agent)
    kit.route("first")
    return kit.claim(root)


def exhaust(kit: Kit, router: Router) -> None:
    """Let every attempt be made."""
    for _ in range(10):
        router.run_once()
        kit.wake()


def failed_callback(kit: Kit, held: ClaimedRun, child: str) -> str:
    """The one callback that the parent gets; why the child failed."""
    ledger = kit.ledger
    assert ledger.session(child).state is SessionState.FAILED
    (callback,) = [item for item in ledger.items(held.session.id) if item.kind == "completion"]
    assert (callback.child, callback.status, callback.state) == (child, "failed", ItemState.QUEUED)
    return ledger.texts(held.session.id, [callback.id])[callback.id]


def test_a_review_by_nobody_comes_back_as_a_failure(kit: Kit) -> None:
    """When no reviewer is registered in time."""
    held = at_work(kit, "lead")
    kit.parts.agents.withdraw("code-reviewer")
    child = kit.assign(held, "code-reviewer", matter=Review()).child_id
    exhaust(kit, kit.router("later", jitter=lambda: 0.0))
    assert "no agent 'code-reviewer' is registered" in failed_callback(kit, held, child)


def test_an_escalation_that_is_not_allowed_comes_back_as_a_failure(kit: Kit) -> None:
    """By the table a specialist does not escalate to the tech-lead; it is told whom it can ask."""
    held = at_work(kit, "reviewer")
    child = kit.assign(held, "tech-lead", matter=EscalationMatter()).child_id
    kit.route("later")
    assert "ask whoever gave 'reviewer' its task" in failed_callback(kit, held, child)


def test_a_launch_whose_key_is_revoked_meanwhile_comes_back_as_a_failure(kit: Kit) -> None:
    """Its signature proves nothing any more, but the ledger knows which entry it wrote itself."""
    held = at_work(kit, "lead")
    child = kit.assign(held, "reviewer").child_id
    kit.parts.keyring.registry.revoke(kit.parts.keyring.signer("lead").key_id)
    kit.route("later")
    assert "key-revoked" in failed_callback(kit, held, child)


def test_a_launch_that_is_too_large_to_be_read_comes_back_as_a_failure(kit: Kit) -> None:
    """Nobody parses it, and nobody has to."""
    held = at_work(kit, "lead")
    child = kit.assign(held, "reviewer", description=HUGE).child_id
    assert kit.route("later").dead == 1
    assert failed_callback(kit, held, child)


def test_a_copy_of_a_launch_cannot_end_its_session(kit: Kit) -> None:
    """Whoever can append to a stream could repeat a task in a form that is refused; the task itself is not."""
    held = at_work(kit, "lead")
    kit.parts.agents.withdraw("reviewer")
    child = kit.assign(held, "reviewer").child_id
    (*_, original) = kit.published("task-delegation")
    router = kit.router("later", jitter=lambda: 0.0)
    assert router.run_once().parked == 1
    kit.publish(original.replace(b"do it", b"do evil"), "task-delegation", "high")
    kit.publish(original, "query", "normal")
    kit.publish(original[:-10], "task-delegation", "high")
    assert router.run_once().dead == 3
    waiting = kit.ledger.session(child)
    assert (waiting.state, "no agent 'reviewer'" in waiting.parked) == (SessionState.PENDING, True)
    exhaust(kit, router)
    assert "no agent 'reviewer' is registered" in failed_callback(kit, held, child)


def test_a_task_that_a_list_forbids_comes_back_as_a_failure(kit: Kit) -> None:
    """The list is the recipient's own; the refusal says what would allow it."""
    picky = AgentRecord(name="picky", role="specialist", accepts_from=("reviewer",))
    kit.parts.agents.announce([picky])
    held = at_work(kit, "lead")
    child = kit.assign(held, "picky").child_id
    kit.route("later")
    assert "add 'lead' to its accepts_from" in failed_callback(kit, held, child)
    assert [letter.rule for letter in kit.dead()] == ["unauthorised"]
    assert kit.ledger.session(kit.send("direct", agent="picky")).state is SessionState.PENDING
    assert kit.route("last").dead == 0


def test_the_lists_of_an_agent_do_not_forbid_its_reports(kit: Kit) -> None:
    """It was given its task by an agent that it may send nothing else to."""
    kit.parts.agents.announce([AgentRecord(name="bound", role="specialist", may_send_to=("reviewer",))])
    done = TaskCompletion(task_id="t", status="success", summary="done")
    kit.post(done, sender="bound", recipient="lead")
    kit.post(Message(content="x"), sender="bound", recipient="lead")
    handled = kit.route()
    assert (handled.done, [letter.type for letter in kit.dead()]) == (1, ["message"])


def test_a_review_of_our_own_that_is_not_done_in_time_comes_back_as_a_failure(
    kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the time that the user's routing table gives it; by default a day."""
    held = at_work(kit, "lead")
    child = kit.assign(held, "code-reviewer", matter=Review()).child_id
    config = tmp_path / "orchestra.toml"
    config.write_text("[routing.review-request]\ntimeout_s = 2\n")
    monkeypatch.setenv("ORCHESTRA_CONFIG", str(config))
    assert kit.route("later").done == 1
    assert kit.ledger.session(child).busy
    sweep_until(kit, child, SessionState.FAILED)
    assert failed_callback(kit, held, child) == "the review was not done in time"


def test_a_review_has_a_day_by_default(kit: Kit) -> None:
    """From when it was asked for, by the server's clock."""
    held = at_work(kit, "lead")
    child = kit.assign(held, "code-reviewer", matter=Review()).child_id
    kit.route("later")
    due_ms = kit.redis.zscore(ledger_keys.timers(0), f"review|{child}")
    assert 0 <= kit.ledger.server_ms() + 86_400_000 - int(due_ms or 0) < 60_000
