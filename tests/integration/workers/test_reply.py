"""A user answers an agent's question: once, and whoever was asked is spared it."""

from __future__ import annotations

import pytest

from orchestrator import Client
from orchestrator.errors import InputError, UnknownSession, WrongState
from orchestrator.ledger import ItemState
from orchestrator.worker.context.context import Context

from .conftest import StackHarness
from .test_talking import stage
from .theatre import Harness

__all__ = ["stage"]


def busy_parent(stage: StackHarness) -> tuple[str, str]:
    """A child that asked by ending its run, and its parent that has not run since; the question's id."""
    stage.lead(
        "worker: do it",
        reply=None,
        answer=lambda ctx: ",".join(f"{c.kind} {c.text}" for c in ctx.callbacks),
    )

    @stage.agent("worker")
    def worker(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.raise_callback("which one?", wait=False)
            return "asked"
        (reply,) = ctx.callbacks
        assert reply.question.startswith("ask_")
        return f"{reply.agent} says {reply.text}"

    root = stage.begin("lead")
    (child,) = stage.children(root)
    assert stage.play(child.id) == "idle"
    (question,) = stage.ledger.session(child.id).questions
    return root, question


def test_the_answer_resumes_who_asked_and_spares_who_was_asked(stage: StackHarness) -> None:
    root, question = busy_parent(stage)
    with Client(stage.settings) as client:
        (child,) = stage.children(root)
        assert client.reply(question, "the left one") == child.id
        item = stage.ledger.item(root, question)
        assert (item.state, item.reason) == (ItemState.DEAD, "answered by the operator")
        lines = [event.text for event in client.history(root)]
        assert any(line.endswith("closed: answered by the operator") for line in lines), lines
        with Harness(stage) as theatre:
            assert theatre.answer(root) == "completion operator says the left one"
        with pytest.raises(WrongState, match="has its reply, or was withdrawn"):
            client.reply(question, "or the right one")


def test_what_is_no_open_question_cannot_be_answered(stage: StackHarness) -> None:
    _, question = busy_parent(stage)
    with Client(stage.settings) as client:
        with pytest.raises(InputError, match="is not the id of a question"):
            client.reply("ses_00", "x")
        with pytest.raises(InputError, match="is empty"):
            client.reply(question, "  ")
        with pytest.raises(UnknownSession):
            client.reply("ask_00" + "0" * 36, "x")
        with pytest.raises(WrongState, match="is not open"):
            client.reply(question[:-12] + "0" * 12, "x")
