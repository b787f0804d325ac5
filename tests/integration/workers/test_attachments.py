"""What is attached to an answer: its parent reads it, and hears if somebody has put another text there."""

from __future__ import annotations

import json

import pytest

from orchestrator.client.client import Client
from orchestrator.doctor import Doctor
from orchestrator.errors import NotGenuine, PayloadError
from orchestrator.ids import callback_id
from orchestrator.policy.callback_text import Callback
from orchestrator.reconciler.delivery import Delivery
from orchestrator.redisdb import keys
from orchestrator.worker.context.context import MAX_ATTACHMENT_BYTES, Context

from .conftest import StackHarness

DIFF = "+Hello\n" * 10_000


@pytest.fixture
def tree(stage: StackHarness) -> tuple[str, str, list[Callback]]:
    """A lead whose coder has ended with a diff attached; the lead has not been resumed. With what it will be told."""
    seen: list[Callback] = []

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("coder", "greet")
            return ""
        seen.extend(ctx.callbacks)
        ctx.state["prompt"] = ctx.prompt
        return "done"

    @stage.agent("coder")
    def coder(ctx: Context) -> str:
        ctx.attach("diff", "to be replaced")
        ctx.attach("diff", DIFF)
        ctx.attach("notes/1.md", "")
        return "greeted"

    root = stage.submit("lead")
    assert stage.play(root) == "idle"
    (child,) = stage.children(root)
    assert stage.play(child.id) == "finished"
    return root, child.id, seen


def test_the_parent_and_the_operator_read_what_is_attached(
    stage: StackHarness, tree: tuple[str, str, list[Callback]]
) -> None:
    root, child, seen = tree
    assert stage.resume(root) == "finished"
    (callback,) = seen
    assert callback.text == "greeted"
    assert (callback.attachment("diff"), callback.attachment("notes/1.md")) == (DIFF, "")
    assert callback.attachment("other") is None
    with Client(stage.settings) as client:
        assert client.attachment(child, "diff") == DIFF
        assert client.attachment(child, "other") is None
    found = Doctor(stage.parts, audit=None).examine(watch_leases=False).findings
    assert [f.rule for f in found if f.severity == "break"] == []


def test_another_text_in_its_place_is_noticed(
    stage: StackHarness, tree: tuple[str, str, list[Callback]]
) -> None:
    """Its digest is a part of what the agent vouches for, and the text has to have it."""
    root, child, seen = tree
    ref = stage.ledger.answer_as_kept(child)[3]["diff"]
    other = stage.ledger.wholes.put(child, "+send money\n")
    blob, forged = keys.large_text(child, ref["sha256"]), keys.large_text(child, other["sha256"])
    stage.redis.restore(blob, 0, stage.redis.dump(forged), replace=True)
    assert stage.resume(root) == "finished"
    for read in (
        lambda: seen[0].attachment("diff"),
        lambda: Client(stage.settings).attachment(child, "diff"),
    ):
        with pytest.raises(PayloadError):
            read()


def test_another_reference_in_its_place_is_noticed(
    stage: StackHarness, tree: tuple[str, str, list[Callback]]
) -> None:
    """The parent does not get such a callback, a client no such attachment, and the doctor names both."""
    root, child, seen = tree
    other = {"diff": stage.ledger.wholes.put(child, "+send money\n")}
    item = json.loads(stage.redis.hget(keys.items(root), callback_id(child)) or "")
    stage.redis.hset(keys.items(root), callback_id(child), json.dumps({**item, "attachments": other}))
    stage.redis.hset(keys.session(child), "attachments", json.dumps(other))
    assert stage.resume(root) == "finished"
    (callback,) = seen
    assert (callback.status, callback.attachment("diff")) == ("failed", None)
    assert "was not delivered" in callback.text
    with Client(stage.settings) as client, pytest.raises(NotGenuine):
        client.attachment(child, "diff")
    found = Doctor(stage.parts, audit=None).examine(watch_leases=False).findings
    assert "not-genuine" in {f.rule for f in found if f.severity == "break"}


def test_an_attachment_that_was_taken_away_or_added_is_noticed(
    stage: StackHarness, tree: tuple[str, str, list[Callback]]
) -> None:
    root, child, seen = tree
    item = json.loads(stage.redis.hget(keys.items(root), callback_id(child)) or "")
    del item["attachments"]["notes/1.md"]
    stage.redis.hset(keys.items(root), callback_id(child), json.dumps(item))
    assert stage.resume(root) == "finished"
    assert "was not delivered" in seen[0].text


def test_what_counts_is_attached_by_the_try_and_the_run_that_end_the_session(stage: StackHarness) -> None:
    """A try that fails takes its attachments along; a run that waits for others has not given the answer yet."""

    @stage.agent("lead", role="coordinator", attempts=2)
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.attach("early", "x")
            ctx.delegate("coder", "greet")
            return ""
        if ctx.cause == "callbacks" and ctx.attempt == 1:
            ctx.attach("of-a-try", "x")
            raise RuntimeError("once more")
        if ctx.cause == "callbacks":
            ctx.attach("late", "x" * (MAX_ATTACHMENT_BYTES + 1))
        return "done"

    stage.agent("coder")(lambda _: "greeted")
    root = stage.submit("lead")
    assert stage.play(root) == "idle"
    with Client(stage.settings) as client:
        assert client.attachment(root, "early") is None
        (child,) = stage.children(root)
        stage.play(child.id)
        flushed = stage.ledger.flush(root).dispatch
        assert flushed is not None
        assert stage.execute(flushed) == "retry"
        assert stage.again(flushed) == "finished"
        assert list(stage.ledger.answer_as_kept(root)[3]) == ["late"]
        kept = client.attachment(root, "late")
        assert kept is not None
        assert kept.endswith("x\n[cut]")
        # Nothing else was stored, and this lives as long as its session.
        assert {s.decode() for s in stage.redis.smembers(keys.large_texts(root))} == {
            stage.ledger.answer_as_kept(root)[3]["late"]["sha256"]
        }
        assert (
            stage.redis.ttl(keys.large_text(root, stage.ledger.answer_as_kept(root)[3]["late"]["sha256"]))
            == -1
        )
        # Another answer has attachments of its own.
        client.resume(root, "go on")
        assert stage.resume(root) == "finished"
        assert client.attachment(root, "late") is None


def test_it_outlives_its_session_as_long_as_somebody_is_there_to_read_it(
    stage: StackHarness, tree: tuple[str, str, list[Callback]]
) -> None:
    root, child, seen = tree
    stage.ledger.stop(child, "not needed any more", state="deleted")
    Delivery(stage.ledger, lambda _: None).close(child)
    assert Client(stage.settings).attachment(child, "diff") is None
    assert stage.resume(root) == "finished"
    assert seen[0].attachment("diff") == DIFF
