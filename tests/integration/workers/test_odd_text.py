"""Text of every kind comes through as it was said: values of JSON, control characters, what no encoding has."""

from __future__ import annotations

import hashlib
import json

import pytest

from orchestrator.ledger import SessionState
from orchestrator.policy.callback_text import parse_callbacks
from orchestrator.redisdb import ledger_keys
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.view import MAX_PROMPT_BYTES_PER_CALLBACK
from tests.kit import Kit
from tests.workers import Workers


def test_the_context_of_a_question_arrives_as_it_was_given(kit: Kit, workers: Workers) -> None:
    """Empty lists stay lists, long numbers keep their digits, and nothing is too deep."""
    values = {"none": None, "list": [], "nested": {"a": [[]], "b": {}}, "long": 2**60 + 1, "third": 1 / 3}
    deep: object = []
    for _ in range(300):
        deep = [deep]
    told = kit.lead("developer: x")

    @kit.agent("developer")
    def developer(ctx: Context) -> str:
        return f"{ctx.raise_callback('?', context=values)} {ctx.raise_callback('?', context={'deep': deep})}"

    assert workers.answer(kit.submit("lead")) == "yes yes"
    assert [c.context for c in told if c.kind == "query"] == [values, {"deep": deep}]


def test_what_json_cannot_say_does_not_spoil_the_events_file(kit: Kit, workers: Workers) -> None:
    kit.lead("developer: x", reply=lambda asked: json.dumps(asked.context))

    @kit.agent("developer")
    def developer(ctx: Context) -> str:
        return str(
            ctx.raise_callback("?", context={"loss": float("nan"), "best": -float("inf"), "left": 0.5})
        )

    said = {"loss": "NaN", "best": "-Infinity", "left": 0.5}
    assert json.loads(workers.answer(kit.submit("lead"))) == said
    line = (kit.settings.data / "_events.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail)["data"]["context"] == said


@pytest.mark.parametrize("text", ["nul \x00 and \x1b[31m", "\ufffe\uffff", "a\r\nb\rc", "\N{GRINNING FACE}"])
def test_text_that_xml_cannot_carry_crosses_a_tree_unchanged(kit: Kit, workers: Workers, text: str) -> None:
    @kit.agent("reviewer")
    def reviewer(ctx: Context) -> str:
        ctx.status(50, text)
        ctx.state["said"] = text
        return f"{ctx.prompt}|{ctx.raise_callback(text, context={'said': text})}"

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("reviewer", ctx.prompt, title=text)
        for asked in ctx.callbacks:
            if asked.kind == "query":
                assert (asked.text, asked.context) == (text, {"said": text})
                ctx.reply(asked, text)
        return "".join(c.text for c in ctx.all_results)

    assert workers.answer(kit.submit("lead", text)) == f"{text}|{text}"


def test_octets_that_are_no_text_cost_no_run(kit: Kit, workers: Workers) -> None:
    """A file's name that is no UTF-8, for one: it is shown with a replacement, in answers, errors and questions."""
    odd = b"caf\xe9.txt".decode(errors="surrogateescape")
    shown = "caf\ufffd.txt"

    @kit.agent("reader")
    def reader(ctx: Context) -> str:
        ctx.status(10, odd)
        return f"{odd} {ctx.raise_callback(odd, context={'file': odd})}"

    @kit.agent("failing")
    def failing(ctx: Context) -> str:
        raise ValueError(odd)

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("reader", odd, title=odd, key=odd, group=odd)
            ctx.delegate("failing", odd)
        for asked in ctx.callbacks:
            if asked.kind == "query":
                ctx.reply(asked, f"{asked.text} {odd}")
        return json.dumps(sorted(c.text.split(" (")[0] for c in ctx.all_results))

    root = kit.submit("lead", odd)
    assert json.loads(workers.answer(root)) == [f"ValueError: {shown}", f"{shown} {shown} {shown}"]
    assert kit.ledger.session(root).state is SessionState.FINISHED


# --- A large result on its way from a child to its parent: whole, and small wherever it need not be.


MIB = 1024 * 1024


@pytest.fixture
def kit(kit: Kit) -> Kit:
    return kit.beside(lease_s=120)


def test_five_mebibytes_cross_from_child_to_parent(kit: Kit) -> None:
    line = "Zeile Nr. äöü 中文 🙂 </agent-callback> & <b>\n"
    text = line * (5 * MIB // len(line.encode()) + 1)
    digest = hashlib.sha256(text.encode()).hexdigest()
    prompts: list[str] = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "much")
            return "waiting"
        (callback,) = ctx.callbacks
        prompts.append(ctx.prompt)
        assert len(callback.text.encode()) <= MAX_PROMPT_BYTES_PER_CALLBACK
        assert callback.size == len(text.encode())
        assert ctx.all_results[0].full() == callback.result
        return hashlib.sha256(callback.full().encode()).hexdigest()

    kit.agent("worker")(lambda _: text)
    root = kit.begin("lead")
    assert kit.end_children(root) == "finished"
    (child,) = kit.children(root)
    assert kit.ledger.result(root) == (SessionState.FINISHED, digest)
    assert hashlib.sha256((kit.answer(child.id) or "").encode()).hexdigest() == digest
    (parsed,) = parse_callbacks(prompts[0])
    assert parsed.size == len(text.encode())
    assert text.startswith(parsed.text)
    assert len(prompts[0].encode()) < 2 * MAX_PROMPT_BYTES_PER_CALLBACK
    assert f"`orchestra result {child.id}` prints the whole" in prompts[0]
    bodies = [kit.redis.memory_usage(ledger_keys.bodies(session)) or 0 for session in (root, child.id)]
    assert max(bodies) < MIB


def test_an_answer_that_no_store_takes_fails_its_session_with_that_reason(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.worker.execution.ending.MAX_PAYLOAD_BYTES", 1000)

    kit.agent("lead", role="coordinator")(lambda _: "x" * 1001)
    root = kit.begin("lead", ends="failed")
    assert "is larger than 1000 bytes" in (kit.answer(root) or "")
