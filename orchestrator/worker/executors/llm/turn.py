"""The turn with which a run of a model agent begins: the task, a user's prompt, or callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import DeferredToolResults
from pydantic_ai.messages import ModelMessage

from orchestrator.agents.options import LlmOptions
from orchestrator.policy.approval import Decision
from orchestrator.policy.callback import Callback
from orchestrator.policy.callback_text import render_callbacks
from orchestrator.policy.guarded_tags import defuse
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.view import describe_missing
from orchestrator.worker.executors.llm.approvals import comment_on, decision_of, metadata_of, verdict_on
from orchestrator.worker.executors.llm.current import Pending
from orchestrator.worker.executors.llm.memory import Memory

_STILL_WAITS = "Not there yet; it comes later, by itself. Call wait to go on waiting."
_ASKED = "Still at work, and something else has come; see below. Call wait to go on waiting."
#: Bytes of a callback that are shown at least, however many come together.
_LEAST_BYTES = 400


@dataclass
class Turn:
    """The input of one run."""

    prompt: str = ""
    history: list[ModelMessage] = field(default_factory=list)
    results: DeferredToolResults | None = None
    #: What comes in the system's role.
    instructions: str = ""
    #: What is kept of this run where the model is not asked: some of its tool calls have results, and others wait still.
    kept: Memory | None = None
    #: Questions of the parent that this run carries, or earlier ones that did not ask the model.
    questions: tuple[str, ...] = ()


def next_turn(context: Context, kept: Memory, options: LlmOptions) -> Turn:
    """The input of this run."""
    asked = _questions(context)
    if not kept.messages:
        # The first run; or one whose first try never came to its end.
        return Turn(prompt=context.prompt, questions=tuple(asked))
    came = _Came(context, kept, options)
    if came.undecided:
        return Turn(kept=came.held(asked))
    if came.nothing_else and came.unanswered and not came.waits:
        # They were made together, and the model goes on when all of them have come.
        return Turn(kept=came.so_far(asked))
    results: dict[str, Any] = came.results()
    unasked = came.unasked()
    decisions = came.decisions()
    in_system = bool(unasked) and options.callback_role == "system"
    prompt = _joined(
        kept.held,
        "" if in_system else unasked,
        "" if came.waits else describe_missing(context.missing),
        defuse(_joined(*context.prompts)),
        *(comment_on(came.tool(call), one) for call, one in decisions.items()),
    )
    deferred = DeferredToolResults(
        calls=results,
        approvals={call: verdict_on(came.tool(call), one) for call, one in decisions.items()},
        metadata={call: metadata_of(one) for call, one in decisions.items() if one.approved},
    )
    some = bool(results or deferred.approvals)
    if not prompt and not some:
        prompt = "Continue." if in_system else "Continue with your task."
    return Turn(
        prompt=prompt,
        history=kept.messages,
        results=deferred if some else None,
        instructions=unasked if in_system else "",
        questions=(*kept.asked, *asked),
    )


class _Came:
    """Callbacks that arrived for the waiting tool calls, in this run and before it."""

    def __init__(self, context: Context, kept: Memory, options: LlmOptions) -> None:
        self._context = context
        self._kept = kept
        self._rest = list(context.callbacks)
        limits = options.limits
        # A token has about four bytes; the callbacks of one run share half of the memory at most.
        together = min(limits.callbacks_bytes, options.memory_tokens * 2)
        self._bytes = max(_LEAST_BYTES, min(limits.callback_bytes, together // max(1, len(self._rest))))
        self._texts = dict(kept.arrived)
        self._decided = set(kept.decided)
        for call, waits in kept.pending.items():
            if waits.refused:
                self._decided.add(call)
                continue
            mine = [callback for callback in self._rest if _answers(callback, waits)]
            self._rest = [callback for callback in self._rest if callback not in mine]
            if mine and waits.kind == "approval":
                self._decided.add(call)
            elif mine:
                self._texts[call] = self._text(mine)
        #: The calls that wait for callbacks of any child.
        self.waits = self._of_kind("wait")
        #: Approvals that nobody has answered, and calls that wait for something of their own that has not come.
        self.undecided = [call for call in self._of_kind("approval") if call not in self._decided]
        self.unanswered = [call for call in self._of_kind("child", "reply") if not self._texts.get(call)]
        self.nothing_else = not self._rest and not context.prompts and not context.missing

    def _of_kind(self, *kinds: str) -> list[str]:
        return [call for call, waits in self._kept.pending.items() if waits.kind in kinds]

    def so_far(self, asked: Sequence[str], *, held: str | None = None) -> Memory:
        """The memory with what has come, while other calls of the same answer wait."""
        return self._kept.model_copy(
            update={
                "arrived": self._texts,
                "decided": sorted(self._decided),
                "asked": list(dict.fromkeys([*self._kept.asked, *asked])),
                "held": self._kept.held if held is None else held,
            }
        )

    def held(self, asked: Sequence[str]) -> Memory:
        """The memory while an approval is open: nothing goes on, and what else has come is kept for afterwards."""
        news = self._news()
        if self.waits and news:
            for call in self.waits:
                self._texts[call] = _joined(self._texts.get(call), news)
            news = ""
        return self.so_far(
            asked, held=_joined(self._kept.held, news, defuse(_joined(*self._context.prompts)))
        )

    def results(self) -> dict[str, Any]:
        """The result of each call that waited for something else than an approval."""
        news = self._news()
        found: dict[str, Any] = {}
        for call in self.waits:
            found[call] = _joined(self._texts.get(call), news)
            news = ""
            self._rest = []
        for call in self._of_kind("child", "reply"):
            found[call] = self._texts.get(call, "")
        other = _ASKED if self._rest or self._context.prompts or self._kept.held else _STILL_WAITS
        return {call: found[call] or other for call in self._kept.pending if call in found}

    def _news(self) -> str:
        """Return the text of what has come and answers no single call."""
        return _joined(self._text(self._rest), describe_missing(self._context.missing))

    def unasked(self) -> str:
        """Return the text of callbacks for which no tool call waits."""
        return self._text(self._rest)

    def _text(self, callbacks: Sequence[Callback]) -> str:
        return render_callbacks(
            callbacks, max_bytes=self._bytes, read_on=_read_on, read_attached=_read_attached
        )

    def decisions(self) -> dict[str, Decision]:
        """Return the decisions on the calls that waited for an approval."""
        return {
            call: decision_of(self._context, self._kept.messages, call, waits)
            for call, waits in self._kept.pending.items()
            if waits.kind == "approval"
        }

    def tool(self, call: str) -> str:
        """The tool of a call that waits."""
        return self._kept.pending[call].tool


def _joined(*texts: str | None) -> str:
    return "\n\n".join(filter(None, texts))


def _questions(context: Context) -> list[str]:
    """The questions of the parent that this run carries."""
    return [one.id for one in context.callbacks if one.can_reply and one.session == context.parent]


def _answers(callback: Callback, waits: Pending) -> bool:
    """Return True if a callback is what a tool call waits for."""
    if waits.kind == "wait":
        return False
    if waits.kind == "child":
        return callback.kind == "completion" and callback.session == waits.target
    return callback.kind == "reply" and callback.question == waits.target


def _read_on(callback: Callback) -> str:
    return f'read_result("{callback.session}", offset) reads on'


def _read_attached(callback: Callback) -> str:
    return f'read_result("{callback.session}", attachment=name) reads one'
