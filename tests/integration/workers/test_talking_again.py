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
from tests.kit import Kit
from tests.workers import Workers

from .test_talking import events


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
def test_a_run_that_dies_after_any_effect_says_and_asks_everything_once(kit: Kit, cut: int) -> None:
    """Calls, questions, replies, messages: the second try gets the same children, replies and items back."""
    mortal = Mortal(cut)

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        for callback in ctx.callbacks:
            if callback.kind == "query":
                ctx.reply(callback, f"{callback.text} yes")
        if ctx.cause == "start":
            ctx.delegate("middle", "go")
        return str(ctx.all_results[0]) if ctx.all_results else "waiting"

    @kit.agent("middle", role="coordinator")
    def middle(ctx: Context) -> str:
        mortal.watch(ctx)
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
        assert mortal.dead.wait(60)
        (child,) = kit.children(root)
        bring_back(kit, workers, child.id)
        assert workers.answer(root) == "one? inline may I? yes two? inline"
    session = kit.ledger.session(child.id)
    assert session.state is SessionState.FINISHED
    assert (session.runs, session.launched, session.delivered, session.dead) == (1, 2, 2, 0)
    said = [i.kind for i in kit.ledger.items(root) if i.kind in ("query", "message")]
    assert sorted(said) == ["message", "query"]
    assert sorted(e["data"]["message"] for e in events(kit)) == ["may I?", "one?", "two?"]


def bring_back(kit: Kit, workers: Workers, session: str) -> None:
    """What the reaper does about a run whose worker is gone."""
    deadline = time.monotonic() + 40
    while True:
        (lease,) = [lease for lease in kit.ledger.sweep.leases(0) if lease.session == session]
        if kit.ledger.release(lease) == "queued":
            break
        assert time.monotonic() < deadline, "its heartbeat goes on"
        time.sleep(0.05)
    dispatch = kit.ledger.sweep.make_ready(lease.run)
    assert dispatch is not None
    workers.give_again(dispatch)
