"""What is attached to an answer: its parent is told of it, reads it, and hears if somebody has put another text there."""

from __future__ import annotations

import json
import subprocess

import pytest

from orchestrator.client.client import Client
from orchestrator.errors import InputError, NotGenuine, PayloadError, SessionFailed
from orchestrator.ids import callback_id
from orchestrator.ledger import ItemState
from orchestrator.policy.callback import Callback
from orchestrator.reconciler.delivery import Delivery
from orchestrator.redisdb import ledger_keys
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.messaging import MAX_ATTACHMENT_BYTES, MAX_ATTACHMENTS
from tests.examined import broken
from tests.kit import Kit

from .test_gateway import orchestra, remote

DIFF = "+Hello\n" * 10_000


@pytest.fixture
def tree(kit: Kit) -> tuple[str, str, list[Callback]]:
    """A lead whose coder has ended with a diff attached; the lead has not been resumed. With what it will be told."""
    seen = kit.lead("coder: greet", answer=lambda ctx: ctx.state.update(prompt=ctx.prompt))

    @kit.agent("coder")
    def coder(ctx: Context) -> str:
        ctx.attach("diff", "to be replaced")
        ctx.attach("diff", DIFF)
        ctx.attach("notes/1.md", "")
        return "greeted"

    root = kit.begin("lead", ends="idle")
    (child,) = kit.children(root)
    assert kit.play(child.id) == "finished"
    return root, child.id, seen


def test_the_parent_is_told_of_what_is_attached_and_reads_it(
    kit: Kit, client: Client, tree: tuple[str, str, list[Callback]]
) -> None:
    root, child, seen = tree
    assert kit.play(root) == "finished"
    (callback,) = seen
    assert (callback.text, callback.attachments) == ("greeted", ("diff", "notes/1.md"))
    assert (callback.attachment("diff"), callback.attachment("notes/1.md")) == (DIFF, "")
    assert callback.attachment("other") is None
    prompt = kit.ledger.own_texts(kit.ledger.session(root)).state["prompt"]
    assert f"[attached: diff, notes/1.md; `orchestra result {child} --attachment NAME` prints one]" in prompt
    (told,) = client.parse_callbacks(root, prompt)
    assert (told.genuine, told.text, told.attachments) == (True, "greeted", callback.attachments)
    assert client.attachment(child, "diff") == DIFF
    assert client.attachment(child, "other") is None
    assert broken(kit) == []


def test_the_programs_of_an_agent_read_what_its_children_attached(kit: Kit) -> None:
    """With the token of its run, piece by piece; of its own children only."""
    printed: list[subprocess.CompletedProcess[str]] = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("coder", "greet")
            ctx.delegate("broken", "fail")
            ctx.wait_for("all")
            return ""
        session = remote(ctx)
        coder, broken = (c.session for c in sorted(ctx.callbacks, key=lambda c: c.status))
        assert session.read_result(coder) == "greeted"
        assert session.read_result(coder, "diff") == long
        with pytest.raises(InputError, match=r"attached nothing as 'other' \(there are: diff\)"):
            session.read_result(coder, "other")
        with pytest.raises(InputError, match="no task of yours that has ended"):
            session.read_result(ctx.session)
        with pytest.raises(SessionFailed, match="out of order"):
            session.read_result(broken)
        (ended, _) = sorted(session.call("results")["results"], key=lambda r: str(r["status"]))
        assert ended["attachments"] == ["diff"]
        printed.append(orchestra(ctx, "result", coder, "--attachment", "diff"))
        return "done"

    @kit.agent("coder")
    def coder(ctx: Context) -> str:
        ctx.attach("diff", long)
        return "greeted"

    @kit.agent("broken")
    def broken(_: Context) -> str:
        raise RuntimeError("out of order")

    long = "".join(f"{n}\n" for n in range(100_000))
    root = kit.begin("lead", ends="idle")
    assert kit.end_children(root) == "finished", kit.ledger.session(root).reason
    assert (printed[0].returncode, printed[0].stdout.strip()) == (0, long.strip())


def test_another_text_in_its_place_is_noticed(kit: Kit, tree: tuple[str, str, list[Callback]]) -> None:
    """Its digest is a part of what the agent vouches for, and the text has to have it."""
    root, child, seen = tree
    ref = kit.ledger.answer_as_kept(child)[3]["diff"]
    other = kit.ledger.large_texts.put(child, "+send money\n")
    blob, forged = (
        ledger_keys.large_text(child, ref["sha256"]),
        ledger_keys.large_text(child, other["sha256"]),
    )
    kit.redis.restore(blob, 0, kit.redis.dump(forged), replace=True)
    assert kit.play(root) == "finished"
    for read in (
        lambda: seen[0].attachment("diff"),
        lambda: Client(kit.settings).attachment(child, "diff"),
    ):
        with pytest.raises(PayloadError):
            read()


def test_another_reference_in_its_place_is_noticed(
    kit: Kit, client: Client, tree: tuple[str, str, list[Callback]]
) -> None:
    """The parent does not get such a callback, a client no such attachment, and the doctor names both."""
    root, child, seen = tree
    other = {"diff": kit.ledger.large_texts.put(child, "+send money\n")}
    item = json.loads(kit.redis.hget(ledger_keys.items(root), callback_id(child)) or "")
    kit.redis.hset(ledger_keys.items(root), callback_id(child), json.dumps({**item, "attachments": other}))
    kit.redis.hset(ledger_keys.session(child), "attachments", json.dumps(other))
    assert kit.play(root) == "finished"
    (callback,) = seen
    assert (callback.status, callback.attachments, callback.attachment("diff")) == ("failed", (), None)
    assert "was not delivered" in callback.text
    with pytest.raises(NotGenuine):
        client.attachment(child, "diff")
    assert "not-genuine" in {finding.rule for finding in broken(kit)}


def test_an_attachment_that_was_taken_away_or_added_is_noticed(
    kit: Kit, tree: tuple[str, str, list[Callback]]
) -> None:
    root, child, seen = tree
    item = json.loads(kit.redis.hget(ledger_keys.items(root), callback_id(child)) or "")
    del item["attachments"]["notes/1.md"]
    kit.redis.hset(ledger_keys.items(root), callback_id(child), json.dumps(item))
    assert kit.play(root) == "finished"
    assert "was not delivered" in seen[0].text


def test_what_counts_is_attached_by_the_try_and_the_run_that_end_the_session(
    kit: Kit, client: Client
) -> None:
    """A try that fails takes its attachments along; a run that waits for others has not given the answer yet."""

    @kit.agent("lead", role="coordinator", attempts=2)
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

    kit.agent("coder")(lambda _: "greeted")
    root = kit.begin("lead", ends="idle")
    assert client.attachment(root, "early") is None
    (child,) = kit.children(root)
    kit.play(child.id)
    assert kit.play(root) == "retry"
    assert kit.again(root) == "finished"
    assert list(kit.ledger.answer_as_kept(root)[3]) == ["late"]
    kept = client.attachment(root, "late")
    assert kept.endswith("x\n[cut]")
    # Nothing else was stored, and this lives as long as its session.
    assert {s.decode() for s in kit.redis.smembers(ledger_keys.large_texts(root))} == {
        kit.ledger.answer_as_kept(root)[3]["late"]["sha256"]
    }
    assert (
        kit.redis.ttl(ledger_keys.large_text(root, kit.ledger.answer_as_kept(root)[3]["late"]["sha256"]))
        == -1
    )
    # Another answer has attachments of its own.
    client.resume(root, "go on")
    assert kit.play(root) == "finished"
    assert client.attachment(root, "late") is None


def test_it_outlives_its_session_as_long_as_somebody_is_there_to_read_it(
    kit: Kit, tree: tuple[str, str, list[Callback]]
) -> None:
    root, child, seen = tree
    kit.ledger.stop(child, "not needed any more", state="deleted")
    Delivery(kit.ledger, lambda _: None).close(child)
    assert Client(kit.settings).attachment(child, "diff") is None
    assert kit.play(root) == "finished"
    assert seen[0].attachment("diff") == DIFF


def test_names_and_numbers_are_bounded(kit: Kit) -> None:
    said: list[str] = []

    @kit.agent("solo")
    def solo(ctx: Context) -> str:
        for name in ("", "a b", "<response>", "x" * 101):
            with pytest.raises(InputError, match="a name has 1 to 100"):
                ctx.attach(name, "x")
        for n in range(MAX_ATTACHMENTS):
            ctx.attach(f"n{n}", "x")
        ctx.attach("n0", "y")
        with pytest.raises(InputError, match="100 attachments at most") as caught:
            ctx.attach("more", "x")
        said.append(str(caught.value))
        return "done"

    root = kit.begin("solo", ends="finished")
    assert said
    assert kit.ledger.session(root).state.value == "finished"
    assert len(kit.ledger.answer_as_kept(root)[3]) == MAX_ATTACHMENTS
    assert all(i.state is not ItemState.DEAD for i in kit.ledger.items(root))
