"""What becomes of an answer in text: with its tag, without, at a root, and while somebody is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from orchestrator.policy.response_tag import ANSWER_NOTE, CUT_NUDGE, NO_RESPONSE, NUDGE
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.text import TextAnswer, finish
from tests.integration.workers.conftest import StackHarness
from tests.integration.workers.test_waiting import breaks


class Script:
    """An agent of text that answers as it is told, and remembers what was said to it."""

    def __init__(self, answers: Iterable[str | TextAnswer]) -> None:
        self._answers = iter(answers)
        self.heard: list[str] = []
        self.visible: list[str] = []

    def say(self, text: str) -> TextAnswer:
        self.heard.append(text)
        answer = next(self._answers)
        return answer if isinstance(answer, TextAnswer) else TextAnswer(text=answer)

    def __call__(self, context: Context) -> str:
        finished = finish(context, self.say(context.prompt), self.say)
        self.visible.append(finished.visible)
        return finished.result


@pytest.fixture
def answer(stage: StackHarness) -> Callable[..., Any]:
    """Let a child answer so, and return its script and its parent's callback."""

    def play(*answers: str | TextAnswer) -> tuple[Script, Any]:
        script = Script(answers)
        stage.agent("writer")(script)
        return script, stage.callback("writer", "write")

    return play


def test_the_content_of_the_tag_is_the_result(answer: Callable[..., Any]) -> None:
    script, callback = answer("I looked. <response> 42 </response> Bye.")
    assert (callback.status, callback.result) == ("completed", "42")
    assert script.heard == ["write"]
    assert script.visible == ["I looked.  Bye."]


def test_an_empty_response_is_a_response(answer: Callable[..., Any]) -> None:
    script, callback = answer("<response></response>")
    assert (callback.status, callback.result) == ("completed", "")
    assert script.heard == ["write"]


def test_an_answer_without_the_tag_is_sent_back_once(answer: Callable[..., Any]) -> None:
    script, callback = answer("42", "<response>42</response>")
    assert (callback.status, callback.result) == ("completed", "42")
    assert script.heard == ["write", NUDGE]
    assert NUDGE == "You must wrap your final answer in XML tags named `response`. Emit your response now."


def test_an_agent_that_repeats_what_it_is_told_has_not_answered(answer: Callable[..., Any]) -> None:
    _, callback = answer(ANSWER_NOTE, NUDGE)
    assert callback.status == "failed"
    assert NO_RESPONSE in callback.error


def test_a_second_answer_without_the_tag_fails_the_session(answer: Callable[..., Any]) -> None:
    script, callback = answer("42", "42 again", "<response>too late</response>")
    assert callback.status == "failed"
    assert NO_RESPONSE in callback.error
    assert script.heard == ["write", NUDGE]


def test_an_answer_that_was_cut_off_counts_as_one_without_the_tag(answer: Callable[..., Any]) -> None:
    script, callback = answer(
        TextAnswer(text="<response>in the docs: `</response>` and", cut_off=True),
        "<response>short</response>",
    )
    assert (callback.status, callback.result) == ("completed", "short")
    assert script.heard == ["write", CUT_NUDGE.format("its limit")]


def test_cut_off_twice_fails_and_says_so(answer: Callable[..., Any]) -> None:
    cut = TextAnswer(text="<response>a</response> b", cut_off=True)
    _, callback = answer(cut, cut)
    assert callback.status == "failed"
    assert "cut off" in callback.error


def test_a_close_tag_before_the_open_one_closes_nothing(answer: Callable[..., Any]) -> None:
    script, callback = answer("</response>42<response>", "```\n<response>42</response>\n```")
    assert (callback.status, callback.result) == ("completed", "42")
    assert script.heard == ["write", NUDGE]
    assert script.visible == ["```\n\n```"]


def test_a_root_is_left_alone(stage: StackHarness) -> None:
    script = Script(["no tag at all", "<response>kept as it is</response>"])
    stage.agent("writer")(script)
    for expected in ("no tag at all", "<response>kept as it is</response>"):
        root = stage.begin("writer", ends="finished")
        assert stage.ledger.result(root)[1] == expected
    assert NUDGE not in script.heard


def test_while_it_waits_for_its_own_children_a_session_owes_no_answer(stage: StackHarness) -> None:
    script = Script(["I wait for my helper", "done", "<response>all done</response>"])

    @stage.agent("middle", role="coordinator")
    def middle(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("helper", "help")
        return script(ctx)

    stage.lead("middle: coordinate")
    stage.agent("helper")(lambda _: "helped")
    root = stage.begin("lead")
    (child,) = stage.children(root)
    assert stage.play(child.id) == "idle"
    assert script.heard == ["coordinate"]
    (helper,) = [s for s in stage.ledger.tree(root) if s.parent == child.id]
    stage.play(helper.id)
    assert stage.resume(child.id) == "finished"
    assert script.heard[-1] == NUDGE
    stage.resume(root)
    assert stage.ledger.result(root)[1] == "all done"


@pytest.mark.parametrize("had", [False, True], ids=["still queued", "had before"])
def test_a_result_that_was_sent_as_a_message_reaches_the_parent_once(stage: StackHarness, had: bool) -> None:
    script = Script(["I did it. <response>forty-two</response>"])
    prompts: list[str] = []
    results: list[str] = []

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("writer", "write")
        else:
            prompts.append(ctx.prompt)
        results.extend(callback.result for callback in ctx.callbacks if callback.kind == "completion")
        return "done"

    @stage.agent("writer")
    def writer(ctx: Context) -> str:
        ctx.message("parent", " forty-two\n")
        if had:
            stage.resume(root)
        return script(ctx)

    root = stage.submit("lead")
    stage.play(root)
    (child,) = stage.children(root)
    stage.play(child.id)
    stage.resume(root)
    assert "".join(prompts).count("forty-two") == 1
    assert results == ["forty-two"]
    assert len(prompts) == 1 + had
    assert stage.ledger.session(root).state == "finished"
    assert breaks(stage) == []


def test_another_text_before_the_result_is_delivered(stage: StackHarness) -> None:
    script = Script(["<response>forty-two</response>"])
    told = stage.lead("writer: write")

    @stage.agent("writer")
    def writer(ctx: Context) -> str:
        ctx.message("parent", "forty-one")
        return script(ctx)

    stage.end_children(stage.begin("lead"))
    assert sorted(callback.text for callback in told) == ["forty-one", "forty-two"]
