"""Whatever an agent said and asked before it died, its next try says and asks under the same ids."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.ledger import SessionState
from orchestrator.worker.context.context import Context
from tests.kit import Kit
from tests.waiting import wait_until
from tests.workers import Workers

from .test_talking import events


def lose_worker_after(kit: Kit, ctx: Context, effects: int) -> None:
    """Lose the worker of a first try once the agent has had so many effects."""
    attempt, numbers = ctx._effects.attempt, itertools.count(1)

    def counted(what: str, call: Callable[[], Any], **given: Any) -> Any:
        done = attempt(what, call, **given)
        if next(numbers) == effects:
            assert kit.crash(ctx.session) == "queued"
        return done

    if ctx.attempt == 1:
        ctx._effects.attempt = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_run_that_dies_after_any_effect_says_and_asks_everything_once(kit: Kit, cut: int) -> None:
    """Calls, questions, replies, messages: the second try gets the same children, replies and items back."""

    kit.lead("middle: go", reply=lambda asked: f"{asked.text} yes")

    @kit.agent("middle", role="coordinator")
    def middle(ctx: Context) -> str:
        lose_worker_after(kit, ctx, cut)
        assert ctx.callbacks == ()
        first = ctx.call("worker", "one", answer=lambda c: f"{c.text} inline")
        ctx.status(50, "half")
        reply = ctx.ask("may I?")
        ctx.message("parent", "going on")
        second = ctx.call("worker", "two", answer=lambda c: f"{c.text} inline")
        return f"{first} {reply} {second}"

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        return ctx.ask(f"{ctx.prompt}?")

    with Workers(kit) as workers:
        root = kit.submit("lead")
        (child,) = wait_until(lambda: kit.children(root), "the child")
        (run,) = wait_until(lambda: [r for r in kit.ledger.runs(child.id) if r.lost], "a lost worker")
        workers.give_again(kit.ledger.sweep.make_ready(run.id))
        assert workers.answer(root) == "one? inline may I? yes two? inline"
    session = kit.ledger.session(child.id)
    assert session.state is SessionState.FINISHED
    assert (session.runs, session.launched, session.delivered, session.dead) == (1, 2, 2, 0)
    said = [i.kind for i in kit.ledger.items(root) if i.kind in ("query", "message")]
    assert sorted(said) == ["message", "query"]
    assert sorted(e["data"]["message"] for e in events(kit)) == ["may I?", "one?", "two?"]
