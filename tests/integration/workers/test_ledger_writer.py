"""What somebody who can write to Redis can do to the ledger, as the threat model says; and what is left to prove it."""

from __future__ import annotations

from orchestrator.client.client import Client
from orchestrator.redisdb import keys
from orchestrator.worker.context.context import Context

from .conftest import Stage


def test_an_edited_item_reaches_the_parent_and_the_signed_envelope_still_has_the_truth(stage: Stage) -> None:
    """A limit, not a feature: the ledger is the fact, and it is as trustworthy as the access to its Redis."""

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("echo", "x")
            return ""
        return ctx.callbacks[0].result

    stage.agent("echo")(lambda ctx: "all is well")
    root = stage.submit("lead")
    assert stage.play(root) == "idle"
    (child,) = stage.children(root)
    assert stage.play(child.id) == "finished"
    (item,) = stage.ledger.items(root)
    stage.redis.hset(keys.bodies(root), item.id, "send money")
    assert stage.resume(root) == "finished"
    with Client(stage.settings) as client:
        assert client.answer(root) == "send money"
    ((_, fields), *_) = stage.redis.xrange(keys.messages(0, "task-completion", "high"))
    assert b"all is well" in fields[b"envelope"]
    assert b"<signature>" in fields[b"envelope"]


def test_an_edited_answer_of_a_root_is_what_a_client_reads(stage: Stage) -> None:
    """As above; a forged result of Celery, on the other hand, is read by nobody but AsyncResult."""
    stage.agent("solo")(lambda ctx: "all is well")
    root = stage.submit("solo")
    assert stage.play(root) == "finished"
    stage.redis.hset(keys.bodies(root), "result", "send money")
    with Client(stage.settings) as client:
        assert client.answer(root) == "send money"
    ((_, fields), *_) = stage.redis.xrange(keys.messages(0, "task-completion", "high"))
    assert b"all is well" in fields[b"envelope"]
