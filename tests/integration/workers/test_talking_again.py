"""Whatever an agent said and asked before it died, its next try says and asks under the same ids."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from celery.exceptions import WorkerTerminate

from orchestrator.ledger import SessionState
from orchestrator.worker.context.context import Context

from .conftest import StackHarness
from .test_talking import events, stage
from .theatre import Harness

__all__ = ["stage"]


class Died(WorkerTerminate):
    """Ends the thread without a commit, as a kill would."""


class Mortal:
    """Dies after so many effects, once."""

    def __init__(self, after: int) -> None:
        self._left = after
        self.dead = threading.Event()

    def watch(self, ctx: Context) -> None:
        attempt = ctx._effects.attempt

        def counted(what: str, call: Callable[[], Any], **given: Any) -> Any:
            done = attempt(what, call, **given)
            self._left -= 1
            if self._left == 0:
                self.dead.set()
                raise Died
            return done

        ctx._effects.attempt = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("cut", range(1, 10))
def test_a_run_that_dies_after_any_effect_says_and_asks_everything_once(
    stage: StackHarness, cut: int
) -> None:
    """Calls, questions, replies, messages: the second try gets the same children, replies and items back."""
    mortal = Mortal(cut)

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        for callback in ctx.callbacks:
            if callback.kind == "query":
                ctx.reply(callback, f"{callback.text} yes")
        if ctx.cause == "start":
            ctx.delegate("middle", "go")
        return str(ctx.all_results[0]) if ctx.all_results else "waiting"

    @stage.agent("middle", role="coordinator")
    def middle(ctx: Context) -> str:
        mortal.watch(ctx)
        assert ctx.callbacks == ()
        first = ctx.call("worker", "one", answer=lambda c: f"{c.text} inline")
        ctx.status(50, "half")
        reply = ctx.ask("may I?")
        ctx.message("parent", "going on")
        second = ctx.call("worker", "two", answer=lambda c: f"{c.text} inline")
        return f"{first} {reply} {second}"

    @stage.agent("worker")
    def worker(ctx: Context) -> str:
        return ctx.ask(f"{ctx.prompt}?")

    with Harness(stage) as theatre:
        root = stage.submit("lead")
        assert mortal.dead.wait(60)
        (child,) = stage.children(root)
        bring_back(stage, theatre, child.id)
        assert theatre.answer(root) == "one? inline may I? yes two? inline"
    session = stage.ledger.session(child.id)
    assert session.state is SessionState.FINISHED
    assert (session.runs, session.launched, session.delivered, session.dead) == (1, 2, 2, 0)
    said = [i.kind for i in stage.ledger.items(root) if i.kind in ("query", "message")]
    assert sorted(said) == ["message", "query"]
    assert sorted(e["data"]["message"] for e in events(stage)) == ["may I?", "one?", "two?"]


def bring_back(stage: StackHarness, theatre: Harness, session: str) -> None:
    """What the reaper does about a run whose worker is gone."""
    deadline = time.monotonic() + 40
    while True:
        (lease,) = [lease for lease in stage.ledger.sweep.leases(0) if lease.session == session]
        if stage.ledger.release(lease) == "queued":
            break
        assert time.monotonic() < deadline, "its heartbeat goes on"
        time.sleep(0.05)
    dispatch = stage.ledger.sweep.make_ready(lease.run)
    assert dispatch is not None
    theatre.give_again(dispatch)
