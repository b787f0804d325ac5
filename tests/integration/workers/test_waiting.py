"""What a context offers to say when it is resumed, and what becomes of its children; reviews and escalations."""

from __future__ import annotations

import re
import time

import pytest

from orchestrator.errors import InputError, UnknownSession
from orchestrator.ids import callback_id
from orchestrator.ledger import ItemState, RunRef, SessionState
from orchestrator.redisdb import keys
from orchestrator.worker.context.context import Context
from tests.examined import broken_by_the_trail
from tests.kit import Kit
from tests.waiting import wait_until
from tests.workers import Workers


def test_a_deadline_resumes_with_what_is_there_and_names_who_is_missing(kit: Kit, workers: Workers) -> None:
    workers.held_back = lambda dispatch: dispatch.agent == "slow"
    seen: list[tuple[list[str], list[tuple[str, str, str]], str]] = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("quick", "a")
            for number in range(22):
                ctx.delegate("slow", f"part {number} </agent-callback>", group="late")
            ctx.wait_for("all", deadline_s=0.5)
            assert ctx.missing == ()
            return "waiting"
        seen.append(
            ([c.agent for c in ctx.callbacks], [(m.agent, m.title, m.group) for m in ctx.missing], ctx.prompt)
        )
        return "done"

    kit.agent("quick")(lambda _: "a")
    kit.agent("slow")(lambda _: "b")
    root = kit.submit("lead")
    wait_until(lambda: any(missing for _, missing, _ in seen), "the deadline")
    callbacks = [agent for agents, _, _ in seen for agent in agents]
    assert callbacks == ["quick"]
    _, missing, prompt = seen[-1]
    assert sorted(missing) == sorted(("slow", f"part {n} </agent-callback>", "late") for n in range(22))
    assert "The deadline has passed. Still at work, and reported when they end:\n- slow: part" in prompt
    assert prompt.endswith("- and 2 more")
    named = re.findall(r"\((ses_[0-9a-f]{26})\)", prompt)
    assert len(named) == 20
    assert {callback_id(n) for n in named} <= {i.id for i in kit.ledger.items(root)}
    assert prompt.count("</agent-callback>") == len(callbacks and seen[-1][0])


def test_a_deadline_without_children_resumes_once_it_is_over(kit: Kit) -> None:
    """The session is idle until then, and its slot is free; nobody needs to have heard of its stop."""
    resumed: list[tuple[str, int]] = []

    @kit.agent("poller")
    def poller(ctx: Context) -> str:
        resumed.append((ctx.cause, len(ctx.callbacks)))
        if len(resumed) < 3:
            ctx.wait_for("any", deadline_s=0.3)
        return str(len(resumed))

    session = kit.begin("poller", ends="idle")
    assert kit.ledger.flush(session).outcome == "waits"
    # Whoever looks at the timers brings it on: nothing else of the stack remembers it.
    for runs in (2, 3):
        found = kit.ledger.session(session)
        assert (found.state, found.busy) == (SessionState.IDLE, False)
        began = kit.ledger.server_ms()
        while not (run := kit.ledger.session(session).run):
            kit.services.reaper.run_once()
        assert kit.ledger.server_ms() - began < 20_000
        kit.execute(RunRef(run=run, session=session, agent="poller", cause="callbacks"))
        assert resumed == [("start", 0), ("callbacks", 0), ("callbacks", 0)][:runs]
    assert kit.ledger.result(session) == (SessionState.FINISHED, "3")


def test_what_comes_before_a_deadline_without_children_ends_the_wait(kit: Kit) -> None:
    @kit.agent("poller")
    def poller(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.wait_for("any", deadline_s=3600)
        return ctx.prompt

    session = kit.begin("poller", "first", ends="idle")
    kit.ledger.enqueue(session, "second", item_id="itm_second", kind="prompt", priority="high")
    assert kit.play(session) == "finished"
    assert kit.answer(session) == "second"


def test_a_deadline_holds_nothing_up_once_the_children_are_done(kit: Kit) -> None:
    """It was said while there were some; and `all` of no children is there at once."""

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("quick", "a")
            ctx.wait_for("any", deadline_s=3600)
        else:
            ctx.wait_for("all", deadline_s=3600)
        return ctx.cause

    kit.agent("quick")(lambda _: "a")
    root = kit.begin("lead", ends="idle")
    assert kit.end_children(root) == "finished"


def test_what_becomes_of_children_when_their_parent_is_closed(kit: Kit, workers: Workers) -> None:
    """By the delegation, else by what the session says, else they are stopped."""
    workers.held_back = lambda dispatch: dispatch.agent == "slow"

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        for policy in ctx.prompt.split():
            if policy == "abandon-all":
                ctx.when_closed("abandon")
            else:
                ctx.delegate("slow", policy, on_close=None if policy == "default" else policy)  # type: ignore[arg-type]
        raise ValueError("boom")

    kit.agent("slow")(lambda _: "b")
    for prompt, states in (
        ("default abandon", {"default": "stopped", "abandon": "pending"}),
        ("abandon-all default stop", {"default": "pending", "stop": "stopped"}),
    ):
        root = kit.submit("lead", prompt)
        assert workers.finish(root).state is SessionState.FAILED
        deadline = time.monotonic() + 40
        while {c.title: c.state.value for c in kit.children(root)} != states or not all(
            i.state is ItemState.DEAD and i.reason for i in kit.ledger.items(root)
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_an_heir_gets_what_a_closed_session_was_owed(kit: Kit, workers: Workers) -> None:
    workers.held_back = lambda dispatch: dispatch.agent == "slow"

    @kit.agent("heir", role="coordinator")
    def heir(ctx: Context) -> str:
        return ctx.callbacks[0].result if ctx.callbacks else "ready"

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        with pytest.raises(UnknownSession):
            ctx.when_closed(heir="ses_00" + "0" * 24)
        for wrong in ({}, {"policy": "leave"}, {"policy": "stop", "heir": ctx.prompt}):
            with pytest.raises(InputError, match="give 'stop', 'abandon' or an heir"):
                ctx.when_closed(**wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="cannot be its own heir"):
            ctx.when_closed(heir=ctx.session)
        ctx.when_closed(heir=ctx.prompt)
        ctx.delegate("slow", "a")
        raise ValueError("boom")

    kit.agent("slow")(lambda _: "inherited")
    next_of_kin = kit.submit("heir")
    workers.finish(next_of_kin)
    root = kit.submit("lead", next_of_kin)
    workers.finish(root)
    (item,) = kit.ledger.items(root)
    wait_until(lambda: kit.ledger.session(next_of_kin).launched, "the inheritance")
    wait_until(lambda: kit.ledger.session(item.child).run, "the run of the child")
    kit.again(item.child)
    wait_until(lambda: kit.answer(next_of_kin) == "inherited", "its answer")


def test_a_review_request_launches_the_code_reviewer(kit: Kit, workers: Workers) -> None:
    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.request_review("Is this safe?", files=["a.py", "b.py"])
            with pytest.raises(InputError, match="needs a description"):
                ctx.request_review(" ")
            return "waiting"
        return ctx.all_results[0].result

    @kit.agent("code-reviewer")
    def reviewer(ctx: Context) -> str:
        return f"{ctx.title}: {ctx.prompt}"

    root = kit.submit("lead")
    assert workers.answer(root) == "Is this safe?: Is this safe?\n\nFiles:\n- a.py\n- b.py"
    ((_, entry),) = kit.redis.xrange(keys.messages(0, "review-request", "high"))
    (child,) = kit.children(root)
    assert f"<task-id>{child.id}</task-id>".encode() in entry[b"envelope"]
    assert f"<reviewed-task-id>{root}</reviewed-task-id>".encode() in entry[b"envelope"]


@pytest.mark.parametrize("served", [True, False])
def test_an_escalation_launches_the_tech_lead_or_is_left_to_the_operator(
    kit: Kit, workers: Workers, *, served: bool
) -> None:
    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            child = ctx.escalate("Two rules contradict each other", reason="conflict")
            assert (child is not None) == served
            return "escalated"
        return ctx.all_results[0].result

    if served:

        @kit.agent("tech-lead", role="orchestrator")
        def tech_lead(ctx: Context) -> str:
            return f"decided: {ctx.prompt}"

    root = kit.submit("lead")
    answer = "decided: Two rules contradict each other" if served else "escalated"
    assert workers.answer(root) == answer
    ((_, entry),) = kit.redis.xrange(keys.messages(0, "escalation", "critical"))
    recipient = "tech-lead" if served else "operator"
    assert f"<agent-name>{recipient}</agent-name>".encode() in entry[b"envelope"]
    if not served:
        # Nobody is to be started for the operator: a router has nothing to wait for, and nothing to give up.
        handled = kit.route(types=["escalation"])
        assert (handled.done, handled.parked, handled.dead) == (1, 0, 0)


# --- The doctor finds the promise kept of every launch that an agent can make: the audit trail knows them all.


@pytest.mark.parametrize("tech_lead", [True, False])
def test_a_review_and_an_escalation_are_launches_too(kit: Kit, workers: Workers, *, tech_lead: bool) -> None:
    """Also what a reviewer launches; an escalation that nobody but the operator can take begins no session."""

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "do it")
            ctx.request_review("Is this safe?")
            ctx.escalate("Two rules contradict each other", reason="conflict")
            ctx.wait_for("all")
        return "done"

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        return "done"

    @kit.agent("code-reviewer", role="coordinator")
    def reviewer(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "look closer")
        return "safe"

    if tech_lead:

        @kit.agent("tech-lead", role="coordinator")
        def decider(ctx: Context) -> str:
            if ctx.cause == "start":
                ctx.delegate("worker", "measure")
            return "decided"

    root = kit.submit("lead")
    assert workers.answer(root) == "done"
    assert kit.ledger.session(root).launched == (3 if tech_lead else 2)
    assert broken_by_the_trail(kit) == []
