"""What becomes of an answer in text: with its tag, without, at a root, and while somebody is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from orchestrator.policy.response_tag import ANSWER_NOTE, CUT_NUDGE, NO_RESPONSE, NUDGE
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.text import TextAnswer, finish
from tests.examined import broken_by_the_trail
from tests.kit import Kit


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
def answer(kit: Kit) -> Callable[..., Any]:
    """Let a child answer so, and return its script and its parent's callback."""

    def play(*answers: str | TextAnswer) -> tuple[Script, Any]:
        script = Script(answers)
        kit.agent("writer")(script)
        return script, kit.callback("writer", "write")

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


def test_a_root_is_left_alone(kit: Kit) -> None:
    script = Script(["no tag at all", "<response>kept as it is</response>"])
    kit.agent("writer")(script)
    for expected in ("no tag at all", "<response>kept as it is</response>"):
        root = kit.begin("writer", ends="finished")
        assert kit.answer(root) == expected
    assert NUDGE not in script.heard


def test_while_it_waits_for_its_own_children_a_session_owes_no_answer(kit: Kit) -> None:
    script = Script(["I wait for my helper", "done", "<response>all done</response>"])

    @kit.agent("middle", role="coordinator")
    def middle(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("helper", "help")
        return script(ctx)

    kit.lead("middle: coordinate")
    kit.agent("helper")(lambda _: "helped")
    root = kit.begin("lead")
    (child,) = kit.children(root)
    assert kit.play(child.id) == "idle"
    assert script.heard == ["coordinate"]
    (helper,) = [s for s in kit.ledger.tree(root) if s.parent == child.id]
    kit.play(helper.id)
    assert kit.play(child.id) == "finished"
    assert script.heard[-1] == NUDGE
    kit.play(root)
    assert kit.answer(root) == "all done"


@pytest.mark.parametrize("had", [False, True], ids=["still queued", "had before"])
def test_a_result_that_was_sent_as_a_message_reaches_the_parent_once(kit: Kit, had: bool) -> None:
    script = Script(["I did it. <response>forty-two</response>"])
    prompts: list[str] = []
    results: list[str] = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("writer", "write")
        else:
            prompts.append(ctx.prompt)
        results.extend(callback.result for callback in ctx.callbacks if callback.kind == "completion")
        return "done"

    @kit.agent("writer")
    def writer(ctx: Context) -> str:
        ctx.message("parent", " forty-two\n")
        if had:
            kit.play(root)
        return script(ctx)

    root = kit.begin("lead")
    (child,) = kit.children(root)
    kit.play(child.id)
    kit.play(root)
    assert "".join(prompts).count("forty-two") == 1
    assert results == ["forty-two"]
    assert len(prompts) == 1 + had
    assert kit.ledger.session(root).state == "finished"
    assert broken_by_the_trail(kit) == []


def test_another_text_before_the_result_is_delivered(kit: Kit) -> None:
    script = Script(["<response>forty-two</response>"])
    told = kit.lead("writer: write")

    @kit.agent("writer")
    def writer(ctx: Context) -> str:
        ctx.message("parent", "forty-one")
        return script(ctx)

    kit.end_children(kit.begin("lead"))
    assert sorted(callback.text for callback in told) == ["forty-one", "forty-two"]
