"""Encrypted sessions: no key of Redis and no row of the trail has a word of them, and everything works as it does in clear."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_type_hints

import pytest
import redis as redis_py

from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import build_container
from orchestrator.client.client import Client
from orchestrator.errors import KeyInUse, PromptKeyInUse, SessionFailed
from orchestrator.keyring.store import KeyStore
from orchestrator.ledger.model import Item, Run, Session, Try, encrypted_fields
from orchestrator.policy.sealed_text import ENCRYPTED, is_sealed
from orchestrator.redisdb import ledger_keys
from orchestrator.worker.context.context import Context
from tests import everything_in_redis
from tests.examined import broken
from tests.hosts import bring_keys
from tests.kit import Kit

from .conftest import Calls

SECRET = "swordfish"


def leaks(client: redis_py.Redis) -> list[str]:
    """The keys that have the secret in clear."""
    return everything_in_redis.leaks(client, SECRET)


def everything(ctx: Context) -> Any:
    """A parent that says the secret in every way that there is."""
    print(f"looking for {SECRET}")
    if ctx.cause == "start":
        ctx.state["secret"] = SECRET
        ctx.status(10, f"about {SECRET}")
        ctx.step("look", lambda: f"{SECRET} found")
        ctx.delegate("child", f"Look for {SECRET}\nand tell", title=f"Find {SECRET}", key="one")
        ctx.delegate("child", task={"description": f"More {SECRET}", "objectives": [SECRET]}, key="two")
        return f"waiting for {SECRET}"
    return " and ".join(f"{c.title}: {c.result}" for c in ctx.all_results)


def child(ctx: Context) -> Any:
    ctx.status(50, f"at {SECRET}", metrics={"secret": SECRET})
    return f"{ctx.prompt.splitlines()[0]} of {ctx.task.title}"


@pytest.mark.parametrize("how", ["agent", "all"])
def test_nothing_of_it_is_in_redis(kit: Kit, how: str) -> None:
    if how == "all":
        kit = kit.beside(encrypt="all")
    kit.agent("parent", role="coordinator", encrypt=how == "agent")(everything)
    kit.agent("child")(child)
    root = kit.submit("parent", f"the {SECRET}", task="task-1")
    assert leaks(kit.redis) == []
    kit.play(root)
    for one in kit.children(root):
        assert one.encrypted
        kit.play(one.id)
    assert kit.play(root) == "finished"
    assert leaks(kit.redis) == []
    with Client(kit.settings) as client:
        answer = client.result(root)
        assert f"Find {SECRET}: Look for {SECRET}" in answer
        assert "More swordfish" in answer
        assert client.session(root).title == f"the {SECRET}"
        # What Celery's result backend holds is sealed, and the client opens it.
        kept = kit.app.AsyncResult("task-1").get(timeout=5)
        assert is_sealed(kept)
        assert client.open_text(kept) == answer
        assert any(SECRET in event.detail for event in client.history(root, texts=True))
    assert broken(kit) == []


@pytest.fixture
def cast(kit: Kit) -> Kit:
    """A child that is not told to encrypt."""
    kit.agent("child", attempts=2)(child)
    return kit


def test_a_question_its_answer_and_an_approval_are_sealed(cast: Kit, client: Client) -> None:
    """Said to a person, and by one."""

    @cast.agent("asking", role="coordinator", encrypt=True)
    def asking(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.ask_later(f"Is it {SECRET}?", context={"word": SECRET}, attempted=[f"{SECRET}1"])
            ctx.approvals.post("tell", {"word": SECRET})
            return "waiting"
        return " ".join(callback.text for callback in ctx.callbacks)

    root = cast.begin("asking")
    assert leaks(cast.redis) == []
    (question,) = client.questions(root)
    assert question.text == f"Is it {SECRET}?"
    assert question.query is not None
    client.reply(question.id, f"it is {SECRET}")
    (approval,) = client.approvals(root)
    assert approval.arguments == {"word": SECRET}
    assert not approval.fault
    client.approve(approval.id, f"yes, {SECRET}")
    assert leaks(cast.redis) == []
    assert cast.play(root) == "finished"
    assert f"it is {SECRET}" in str(cast.answer(root))
    assert leaks(cast.redis) == []


def test_the_reaper_reads_what_an_approval_asks_and_nothing_else(cast: Kit, tmp_path: Path) -> None:
    """Its default counts when its time is up, on a host that has the key of the reaper alone."""

    @cast.agent("asking", role="coordinator", encrypt=True)
    def asking(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.approvals.post("tell", {"word": SECRET}, timeout_s=60)
        return "done"

    for name in ("reaper", "asking", "operator"):
        cast.parts.keyring.signer(name)
    root = cast.begin("asking")
    apart = tmp_path / "reaper-host"
    bring_keys(cast.parts.keyring.store, KeyStore(apart / "keys"), "reaper")
    reaper = build_container(cast.redis, cast.settings.model_copy(update={"data": apart}))
    (open_one,) = reaper.ledger.approvals.find(reaper.ledger.session(root).questions)
    assert open_one.request.expires_ms
    assert reaper.ledger.session(root).title == ENCRYPTED
    assert reaper.ledger.texts(root, ["prompt"])["prompt"] == ENCRYPTED


def test_a_failure_says_nothing_in_clear(cast: Kit) -> None:
    """Neither its tries nor its end."""

    @cast.agent("failing", attempts=2)
    def failing(ctx: Context) -> str:
        raise RuntimeError(f"no {SECRET} found")

    @cast.agent("parent", role="coordinator", encrypt=True)
    def parent(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("failing", f"find {SECRET}")
            return ""
        return ctx.callbacks[0].error or ""

    root = cast.begin("parent")
    (below,) = cast.children(root)
    assert cast.play(below.id) == "retry"
    assert leaks(cast.redis) == []
    assert SECRET in cast.ledger.session(below.id).trouble
    assert cast.again(below.id) == "failed"
    assert leaks(cast.redis) == []
    assert cast.play(root) == "finished"
    assert f"no {SECRET} found" in str(cast.answer(root))
    assert leaks(cast.redis) == []


def test_a_try_that_dies_finds_its_steps_and_its_children(cast: Kit, calls: Calls) -> None:
    """The next one asks for the same, and gets it."""

    @cast.agent("parent", role="coordinator", encrypt=True, attempts=2)
    def parent(ctx: Context) -> str:
        if ctx.cause != "start":
            return ctx.callbacks[0].text
        ctx.delegate("child", ctx.step("look", calls.of("look", f"the {SECRET}")))
        if ctx.attempt == 1:
            raise RuntimeError("died")
        return ""

    root = cast.begin("parent", ends="retry")
    assert cast.again(root) == "idle"
    assert calls.made == {"look": 1}
    (below,) = cast.children(root)
    assert cast.play(below.id) == "finished"
    assert cast.play(root) == "finished"
    assert SECRET in str(cast.answer(root))
    assert leaks(cast.redis) == []


def test_fifty_answers_a_large_one_and_attachments_come_at_once(cast: Kit) -> None:
    """A flush of many; one is larger than what the ledger holds itself."""
    kit = cast.beside()
    object.__setattr__(kit.ledger.limits, "inline_bytes", 20_000)

    @kit.agent("writer")
    def writer(ctx: Context) -> str:
        ctx.attach("notes", f"notes on {SECRET}")
        return f"{ctx.prompt} " + (SECRET * 5_000 if ctx.prompt == "0" else SECRET)

    @kit.agent("parent", role="coordinator", encrypt=True)
    def parent(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate_all("writer", map(str, range(50)))
            ctx.wait_for("all")
            return ""
        assert all(c.attachment("notes") == f"notes on {SECRET}" for c in ctx.callbacks)
        return f"{len(ctx.callbacks)} {sum(len(c.full()) for c in ctx.callbacks)}"

    root = kit.begin("parent")
    for below in kit.children(root):
        kit.play(below.id)
    assert kit.play(root) == "finished"
    sizes = sum(len(f"{n} ") + len(SECRET) * (5_000 if n == 0 else 1) for n in range(50))
    assert kit.answer(root) == f"50 {sizes}"
    assert leaks(kit.redis) == []


def test_the_same_submission_is_the_same_session(cast: Kit, client: Client) -> None:
    """What is sealed twice differs, and is compared as it was said."""
    cast.agent("parent", role="coordinator", encrypt=True)(everything)
    first = client.submit("parent", f"a {SECRET}", key="k")
    assert client.submit("parent", f"a {SECRET}", key="k").id == first.id
    with pytest.raises(KeyInUse):
        client.submit("parent", "another", key="k")
    cast.play(first.id)
    again = client.resume(first.id, f"more {SECRET}", key="r")
    assert client.resume(first.id, f"more {SECRET}", key="r") == again
    with pytest.raises(PromptKeyInUse):
        client.resume(first.id, "something else", key="r")
    assert leaks(cast.redis) == []


def test_a_fork_is_sealed_anew(cast: Kit, client: Client) -> None:
    """It belongs to another tree, and only what was sealed for a tree is opened in it."""
    cast.agent("parent", role="coordinator", encrypt=True)(everything)
    root = cast.begin("parent", f"the {SECRET}")
    for below in cast.children(root):
        cast.play(below.id)
    cast.play(root)
    fork = client.fork(root, "2").id
    assert cast.play(fork) == "finished"
    assert f"Find {SECRET}" in str(cast.answer(fork))
    assert leaks(cast.redis) == []


def test_state_of_another_tree_is_not_opened(cast: Kit, client: Client) -> None:
    """Somebody who can write to Redis puts it there, to be told it by the agent."""

    @cast.agent("keeper", encrypt=True)
    def keeper(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.state["word"] = ctx.prompt
        return f"kept {ctx.state.get('word')}"

    theirs, mine = cast.submit("keeper", SECRET), cast.submit("keeper", "nothing")
    cast.play(theirs)
    cast.play(mine)
    kept = cast.redis.hget(ledger_keys.bodies(theirs), "state")
    assert kept is not None
    cast.redis.hset(ledger_keys.bodies(mine), "state", kept)
    client.resume(mine, "tell me")
    assert cast.play(mine) == "failed"
    _, why = cast.ledger.result(mine)
    assert "sealed for another tree" in str(why)


def test_a_mark_that_was_taken_off_changes_nothing(cast: Kit) -> None:
    """Somebody who can write to Redis would have the agent speak in clear."""
    cast.agent("keeper", encrypt=True)(child)
    root = cast.submit("keeper", SECRET)
    cast.redis.hdel(ledger_keys.session(root), "encrypted")
    assert cast.play(root) == "finished"
    assert SECRET in str(cast.answer(root))
    assert leaks(cast.redis) == []


def test_a_copied_sealed_text_is_not_opened(cast: Kit) -> None:
    """Somebody who can read Redis gives it to the agent as a task of his own."""
    cast.agent("keeper", encrypt=True)(child)
    cast.agent("open")(child)
    theirs = cast.submit("keeper", SECRET)
    stolen = (cast.redis.hget(ledger_keys.bodies(theirs), "prompt") or b"").decode()
    assert is_sealed(stolen)
    for agent in ("keeper", "open"):
        mine = cast.submit(agent, stolen)
        cast.play(mine)
        assert SECRET not in str(cast.answer(mine))


def test_a_worker_without_the_key_says_so(cast: Kit, tmp_path: Path) -> None:
    """Its session fails with the command that helps."""
    cast.agent("keeper", encrypt=True)(child)
    for name in ("operator", "keeper"):
        cast.parts.keyring.signer(name)
    root = cast.submit("keeper", SECRET)
    dispatch = cast.start(root)
    store = cast.parts.keyring.store
    old = [one for one in store.list() if one.agent == "keeper"]
    store.rotate("keeper", overlap_s=0)
    # A host that was given a newer key only.
    apart = tmp_path / "apart"
    bring_keys(store, KeyStore(apart / "keys"), "keeper")
    for one in old:
        (apart / "keys" / f"{one.key_id}.pem").unlink()
    far = cast.beside(data=apart)
    assert far.execute(dispatch) == "failed"
    with Client(cast.settings) as client, pytest.raises(SessionFailed, match="orchestra keys export keeper"):
        client.result(root)


def test_a_program_without_a_key_is_refused_at_once(cast: Kit) -> None:
    """The error names the command that makes one, and nothing is launched."""
    cast.parts.agents.announce([AgentRecord(name="partner", role="specialist", executor="foreign")])

    @cast.agent("parent", role="coordinator", encrypt=True)
    def parent(ctx: Context) -> str:
        ctx.delegate("partner", SECRET)
        return ""

    root = cast.begin("parent", ends="failed")
    assert "orchestra keys generate partner --use encrypt" in str(cast.answer(root))
    assert cast.children(root) == []


#: Texts of the ledger that name things: ids, agents, kinds, versions, and words that the stack itself says.
NAMES = {
    Session: "id agent parent root run correlation message priority task close_policy parked entry delegator task_id caller step "
    "last_said report proof task_proof forked_from forked_at version options",
    Run: "id session claim worker version",
    Try: "worker",
    Item: "id kind child agent status priority run",
}


@pytest.mark.parametrize("model", NAMES)
def test_a_field_of_the_ledger_is_a_name_or_encrypted(model: type) -> None:
    """A new field that holds text is marked as what somebody says, or is written down here as a name."""
    texts = {name for name, kind in get_type_hints(model).items() if kind is str}
    assert texts - encrypted_fields(model).keys() == {*NAMES[model].split()}
