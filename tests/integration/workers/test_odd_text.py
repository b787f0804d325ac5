"""Text of every kind comes through as it was said: values of JSON, control characters, what no encoding has."""

from __future__ import annotations

import json

import pytest

from orchestrator.ledger import SessionState
from orchestrator.worker.context.context import Context

from .conftest import StackHarness
from .theatre import Harness


def test_the_context_of_a_question_arrives_as_it_was_given(stage: StackHarness, theatre: Harness) -> None:
    """Empty lists stay lists, long numbers keep their digits, and nothing is too deep."""
    values = {"none": None, "list": [], "nested": {"a": [[]], "b": {}}, "long": 2**60 + 1, "third": 1 / 3}
    deep: object = []
    for _ in range(300):
        deep = [deep]
    told = stage.lead("developer: x")

    @stage.agent("developer")
    def developer(ctx: Context) -> str:
        return f"{ctx.raise_callback('?', context=values)} {ctx.raise_callback('?', context={'deep': deep})}"

    assert theatre.answer(stage.submit("lead")) == "yes yes"
    assert [c.context for c in told if c.kind == "query"] == [values, {"deep": deep}]


def test_what_json_cannot_say_does_not_spoil_the_events_file(stage: StackHarness, theatre: Harness) -> None:
    stage.lead("developer: x", reply=lambda asked: json.dumps(asked.context))

    @stage.agent("developer")
    def developer(ctx: Context) -> str:
        return str(
            ctx.raise_callback("?", context={"loss": float("nan"), "best": -float("inf"), "left": 0.5})
        )

    said = {"loss": "NaN", "best": "-Infinity", "left": 0.5}
    assert json.loads(theatre.answer(stage.submit("lead"))) == said
    line = (stage.settings.data / "_events.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail)["data"]["context"] == said


@pytest.mark.parametrize("text", ["nul \x00 and \x1b[31m", "\ufffe\uffff", "a\r\nb\rc", "\N{GRINNING FACE}"])
def test_text_that_xml_cannot_carry_crosses_a_tree_unchanged(
    stage: StackHarness, theatre: Harness, text: str
) -> None:
    @stage.agent("reviewer")
    def reviewer(ctx: Context) -> str:
        ctx.status(50, text)
        ctx.state["said"] = text
        return f"{ctx.prompt}|{ctx.raise_callback(text, context={'said': text})}"

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("reviewer", ctx.prompt, title=text)
        for asked in ctx.callbacks:
            if asked.kind == "query":
                assert (asked.text, asked.context) == (text, {"said": text})
                ctx.reply(asked, text)
        return "".join(c.text for c in ctx.all_results)

    assert theatre.answer(stage.submit("lead", text)) == f"{text}|{text}"


def test_octets_that_are_no_text_cost_no_run(stage: StackHarness, theatre: Harness) -> None:
    """A file's name that is no UTF-8, for one: it is shown with a replacement, in answers, errors and questions."""
    odd = b"caf\xe9.txt".decode(errors="surrogateescape")
    shown = "caf\ufffd.txt"

    @stage.agent("reader")
    def reader(ctx: Context) -> str:
        ctx.status(10, odd)
        return f"{odd} {ctx.raise_callback(odd, context={'file': odd})}"

    @stage.agent("failing")
    def failing(ctx: Context) -> str:
        raise ValueError(odd)

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("reader", odd, title=odd, key=odd, group=odd)
            ctx.delegate("failing", odd)
        for asked in ctx.callbacks:
            if asked.kind == "query":
                ctx.reply(asked, f"{asked.text} {odd}")
        return json.dumps(sorted(c.text.split(" (")[0] for c in ctx.all_results))

    root = stage.submit("lead", odd)
    assert json.loads(theatre.answer(root)) == [f"ValueError: {shown}", f"{shown} {shown} {shown}"]
    assert stage.ledger.session(root).state is SessionState.FINISHED
