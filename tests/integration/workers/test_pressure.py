"""Agents at work while the streams hold more than they may: new work is refused, and nothing else."""

from __future__ import annotations

import pytest

from orchestrator.errors import StreamFull
from orchestrator.ledger import SessionState
from orchestrator.streams import all_streams, stream_key
from orchestrator.streams.pressure import Backpressure
from orchestrator.worker.context.context import Context
from tests.kit import Kit
from tests.workers import Workers


def test_agents_report_ask_and_answer_and_launch_nothing_more(kit: Kit, workers: Workers) -> None:
    """With every stream above its limit: a delegation is refused, all that ends or answers work is taken."""
    limit = 5
    kit.parts.pressure = Backpressure(kit.redis, limit=limit, retry_for_s=0.05, max_delay_s=0, memory_s=0)
    refused: list[str] = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "good")
            ctx.delegate("worker", "bad")
            for stream in all_streams():
                for _ in range(limit):
                    kit.redis.xadd(stream_key(stream), {"envelope": b"x"})
            for launch in (
                lambda: ctx.delegate("worker", "more"),
                lambda: ctx.delegate_all("worker", ["more", "and more"]),
                lambda: ctx.call("worker", "more"),
                lambda: ctx.request_review("more"),
            ):
                with pytest.raises(StreamFull) as error:
                    launch()
                refused.append(str(error.value))
            ctx.status(50, "waiting")
            ctx.wait_for("all")
        for callback in ctx.callbacks:
            if callback.kind == "query":
                ctx.reply(callback, "this one")
        return " ".join(sorted(c.text for c in ctx.all_results))

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        if ctx.prompt == "bad":
            raise ValueError("no luck")
        ctx.message("parent", "half way")
        return f"told {ctx.ask('which one?')}"

    root = kit.submit("lead")
    answer = workers.answer(root)
    assert "told this one" in answer
    assert "no luck" in answer
    assert len(refused) == 4
    assert all("new work is refused until the routers catch up" in text for text in refused)
    session = kit.ledger.session(root)
    assert (session.state, session.launched, session.delivered) == (SessionState.FINISHED, 2, 2)
    lengths = {s: kit.redis.xlen(stream_key(s)) for s in all_streams()}
    assert {s.type for s, n in lengths.items() if n > limit} >= {
        "task-completion",
        "error",
        "query",
        "reply",
        "message",
        "status-update",
    }


def test_what_waited_comes_back_into_a_full_stream(kit: Kit) -> None:
    """A retry was new work once, and is not refused for being tried again."""
    kit.agent("lead", role="coordinator")(lambda _: "")
    kit.submit("lead")
    kit.parts.agents.withdraw("lead")
    assert kit.route().parked == 1
    stream = next(s for s in all_streams() if (s.type, s.priority) == ("task-delegation", "high"))
    for _ in range(5):
        kit.redis.xadd(stream_key(stream), {"envelope": b"x"})
    assert len(kit.delayed.all()) == 1
    kit.wake()
    (row,) = kit.streams.backlog("router", [stream])
    assert row.published >= 6
