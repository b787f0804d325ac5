"""Handling of an answer in text, the same for every executor.

A session with a parent answers in ``<response>…</response>``: the content is its result. An answer without the tag is
sent back once, in the same conversation; a second one without it fails the run. A root is left alone.

A session that waits for somebody after this run (a child, the reply to a question) has not given its answer yet. It
needs no tag then.

An answer may hold messages of the agent's own, ``<agent-message>…</agent-message>``. They are taken out of the text,
checked, and sent in its name. What is wrong with them is handed back once; then the run fails. Nothing of an answer is
sent as long as anything in it is wrong. A message that stands in what the agent was told is a quotation, and stays text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from html import unescape

from orchestrator.envelope.bodies import ErrorReport, TaskCompletion
from orchestrator.envelope.written import MAX_MESSAGES, WrittenMessage, find_messages, read_message
from orchestrator.errors import InputError, InvalidEnvelope, NoResponse, TaskFailed
from orchestrator.log import get_logger
from orchestrator.policy.guarded_tags import restore
from orchestrator.policy.response_tag import (
    ANSWER_NOTE,
    CUT_NUDGE,
    NO_RESPONSE,
    NUDGE,
    RESPONSE,
    tag_extract,
    tag_strip,
)
from orchestrator.worker.context.context import Context

_log = get_logger()

#: Mistakes of an answer that its agent reads at once.
_SHOWN_MISTAKES = 10
#: What a quotation may put in or leave out.
_CHANGEABLE = re.compile(r"\\[nrt]|[\s\\>]")
#: Characters of a quoted message that the log shows.
_LONGEST_QUOTE = 200


@dataclass(frozen=True, kw_only=True)
class TextAnswer:
    """The answer of an agent in one turn of its conversation."""

    text: str
    #: Whether a limit of tokens or of length ended the answer. It counts as one without the tag then: the close tag
    #: that it shows need not be its last one.
    cut_off: bool = False
    #: Which limit that was, in words.
    limit: str = "its limit"


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The result of an answer."""

    result: str  #: what the parent, or the caller of the root, is given
    visible: str  #: the answer as people see it: without the block that is the result


#: Says something to the agent, in the conversation of this run; what the agent answers.
Say = Callable[[str], TextAnswer]


def first_prompt(context: Context, protocol: str) -> str:
    """The prompt of a run; that of the first one tells the agent the protocol, or at least of the tag of its answer."""
    if context.cause != "start" or context.correction:
        return context.prompt
    if protocol:
        return f"{protocol}\n\n---\n\n{context.prompt}"
    return f"{context.prompt}\n\n{ANSWER_NOTE}" if context.parent else context.prompt


def finish(
    context: Context, answer: TextAnswer, say: Say, read: Callable[[], Iterable[str]] = tuple
) -> Finished:
    """Make a result of the answer that ended an agent's work, and send what it wrote to others.

    Args:
        context: the run.
        answer: what the agent answered last.
        say: continues the conversation; called at most once for the tag, and once for messages that are wrong.
        read: what the agent has read beside its task, its prompts and its callbacks, as far as that is known.

    Raises:
        NoResponse: the agent left the tag out, was reminded, and left it out again.
        InputError: its messages were wrong, and wrong again.
        TaskFailed: it reported that its task has failed.
        ClaimLost, SessionStopped, ServerUnavailable: the run cannot go on.
    """
    context.answers_in_text = True
    return _Finishing(context, say, read).finish(answer)


class _Finishing:
    def __init__(self, context: Context, say: Say, read: Callable[[], Iterable[str]]) -> None:
        self._context = context
        self._say = say
        self._read = read
        self._handed_back = False
        #: Whether messages of the last answer are sent.
        self._sent = False
        self._end: TaskCompletion | ErrorReport | None = None

    def finish(self, answer: TextAnswer) -> Finished:
        answer = self._send(answer)
        if not self._context.parent:
            # A root that has only written messages answers with its task-completion.
            result = answer.text or self._reported()
            if answer.cut_off and not self._context.waits:
                self._mark(answer)
            return Finished(result=result, visible=answer.text)
        finished = self._finished(answer)
        if finished is None:
            answer = self._send(self._say(CUT_NUDGE.format(answer.limit) if answer.cut_off else NUDGE))
            finished = self._finished(answer)
        if finished is None:
            if not self._sent:  # else asked anew, it might say the same to others again
                self._context.steps.reject_answer()
            raise NoResponse(NO_RESPONSE, _what_is_wrong(answer))
        return finished

    def _mark(self, answer: TextAnswer) -> None:
        """Report the end of a root whose answer was cut off as what it is: a part of an answer."""
        _log.warning("answer-cut-off", limit=answer.limit)
        said = f"The answer was cut off at {answer.limit}."
        self._context.end_with(TaskCompletion(status="partial-success", summary=said, result=answer.text))

    def _finished(self, answer: TextAnswer) -> Finished | None:
        """Return the result of an answer of a session with a parent; None if it lacks the tag."""
        result = None if answer.cut_off else tag_extract(answer.text, RESPONSE)
        if result is not None:
            return Finished(result=result, visible=tag_strip(answer.text, RESPONSE).strip())
        if self._end is not None:
            return Finished(result=self._reported(), visible=answer.text)
        if self._context.waits:  # no answer yet
            return Finished(result=answer.text, visible=answer.text)
        return None

    def _reported(self) -> str:
        """Return the result in the agent's own task-completion; empty if it wrote none."""
        end = self._end
        return (end.result or end.summary) if isinstance(end, TaskCompletion) else ""

    def _send(self, answer: TextAnswer) -> TextAnswer:
        """Send the messages in an answer; the answer without them."""
        self._sent = False
        if answer.cut_off:
            return answer  # nobody knows what else it was to say
        written, text = self._take(answer.text)
        if not written:
            return answer
        messages, wrong = _read(written)
        if not wrong:
            wrong = self._context.written.check(messages)
        if wrong:
            return self._hand_back(wrong)
        self._sent = True
        end = self._context.written.send(messages)
        if isinstance(end, ErrorReport):
            raise TaskFailed(end.message)
        if isinstance(end, TaskCompletion) and end.status == "failed":
            raise TaskFailed(end.result or end.summary)
        self._end = end or self._end
        return TextAnswer(text=text)

    def _take(self, text: str) -> tuple[list[str], str]:
        """Return the messages in a text, and the rest. The content of the tag is the result, unless it is one message
        alone.
        """
        content = tag_extract(text, RESPONSE) if self._context.parent else None
        if content is None:
            return find_messages(text, self._is_quoted)
        inside, left = find_messages(content, self._is_quoted)
        outside, rest = find_messages(tag_strip(text, RESPONSE), self._is_quoted)
        if len(inside) == 1 and not left:
            return [*outside, *inside], rest
        return outside, f"{rest}\n<{RESPONSE}>{content}</{RESPONSE}>"

    def _is_quoted(self, written: str) -> bool:
        """Return True if a message was part of what the agent was told: a quotation, not a message of its own."""
        if _bare(written) not in self._told:
            return False
        get_logger().warning("message-quoted", run=self._context.run, message=written[:_LONGEST_QUOTE])
        return True

    @cached_property
    def _told(self) -> str:
        """Everything that the agent was told, bare."""
        context = self._context
        given = (*context.callbacks, *context.all_results)
        texts = [
            context.prompt,
            *context.prompts,
            *(part for one in given for part in (one.text, one.details)),
        ]
        return "\0".join(_bare(text) for text in (*texts, *self._read()))

    def _hand_back(self, wrong: list[str]) -> TextAnswer:
        """Tell the agent what is wrong with its messages, once; its new answer, sent."""
        shown = wrong[:_SHOWN_MISTAKES]
        more = len(wrong) - len(shown)
        if self._handed_back:
            self._context.steps.reject_answer()
            raise InputError(f"the messages in its answer are not valid: {shown[0]}")
        self._handed_back = True
        lines = [f"- {one}" for one in shown] + ([f"- and {more} more"] if more else [])
        return self._send(
            self._say(
                "Nothing of your answer was sent, as its <agent-message> is not valid:\n"
                + "\n".join(lines)
                + "\nAnswer again, with every message that you want to send."
            )
        )


def _read(written: list[str]) -> tuple[list[WrittenMessage], list[str]]:
    """Return the messages parsed, and what is wrong with those that cannot be."""
    if len(written) > MAX_MESSAGES:
        return [], [f"there are {len(written)} messages in it; {MAX_MESSAGES} are the most"]
    messages, wrong = [], []
    for number, one in enumerate(written, 1):
        try:
            messages.append(read_message(one))
        except InvalidEnvelope as error:
            sentences = [finding.sentence for finding in error.args[1]] or [str(error)]
            wrong += [f"message {number}: {sentence}" for sentence in sentences]
    return messages, wrong


def _bare(text: str) -> str:
    """Return a text without what a quotation may change: white space, quotation marks of lines, entities, escapes of
    JSON.
    """
    return _CHANGEABLE.sub("", unescape(unescape(restore(text))))


def _what_is_wrong(answer: TextAnswer) -> str:
    if answer.cut_off:
        return f"its answer was cut off at {answer.limit}; raise the limit, or ask for less"
    return (
        f"its answer of {len(answer.text)} characters has no <{RESPONSE}> tag, and neither had the one before"
    )
