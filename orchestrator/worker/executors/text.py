"""What every executor does with an answer in text, whatever produced it.

A session with a parent answers in ``<response>…</response>``: the content is its result. An answer without the tag is
sent back once, in the same conversation; a second one without it fails the run. A root is left alone.

A session that waits for somebody after this run (a child, the reply to a question) has not given its answer yet. It
needs no tag then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import NoResponse
from orchestrator.policy.response_tag import ANSWER_NOTE, NO_RESPONSE, NUDGE, RESPONSE, tag_extract, tag_strip
from orchestrator.worker.context.context import Context


@dataclass(frozen=True, kw_only=True)
class TextAnswer:
    """What an agent answered in one turn of its conversation."""

    text: str
    #: Whether a limit of tokens or of length ended the answer. It counts as one without the tag then: the close tag
    #: that it shows need not be its last one.
    cut_off: bool = False


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What an answer comes to."""

    result: str  #: what the parent, or whoever submitted the root, is given
    visible: str  #: the answer as people see it: without the block that is the result


#: Says something to the agent, in the conversation of this run; what the agent answers.
Say = Callable[[str], TextAnswer]


def first_prompt(context: Context) -> str:
    """The prompt of a run, with what an agent must know of the answer that is expected of it."""
    if not context.parent or context.cause != "start":
        return context.prompt
    return f"{context.prompt}\n\n{ANSWER_NOTE}"


def finish(context: Context, answer: TextAnswer, say: Say) -> Finished:
    """Make a result of the answer that ended an agent's work.

    Args:
        context: the run.
        answer: what the agent answered last.
        say: continues the conversation; called at most once for the tag.

    Raises:
        NoResponse: the agent left the tag out, was reminded, and left it out again.
        ClaimLost, SessionStopped, ServerUnavailable: the run cannot go on.
    """
    if not context.parent:
        return Finished(result=answer.text, visible=answer.text)
    finished = _tagged(answer)
    if finished is None and context.waits:
        return Finished(result=answer.text, visible=answer.text)
    if finished is None:
        answer = say(NUDGE)
        finished = _tagged(answer)
    if finished is None:
        raise NoResponse(NO_RESPONSE, _what_is_wrong(answer))
    return finished


def _tagged(answer: TextAnswer) -> Finished | None:
    if answer.cut_off:
        return None
    result = tag_extract(answer.text, RESPONSE)
    if result is None:
        return None
    return Finished(result=result, visible=tag_strip(answer.text, RESPONSE).strip())


def _what_is_wrong(answer: TextAnswer) -> str:
    if answer.cut_off:
        return "its answer was cut off by a limit"
    return (
        f"its answer of {len(answer.text)} characters has no <{RESPONSE}> tag, and neither had the one before"
    )
