"""What a run of a model agent begins with: the task, a user's words, or callbacks, as the model is to see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import DeferredToolResults
from pydantic_ai.messages import ModelMessage

from orchestrator.agents.options import LlmOptions
from orchestrator.policy.callback_text import Callback, defuse, render_callbacks
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.view import describe_missing
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
    #: Results of some tool calls, while others that were made together with them still wait: the model is not asked.
    arrived: dict[str, str] | None = None
    #: Questions that this run carries.
    questions: tuple[Callback, ...] = ()


def next_turn(context: Context, kept: Memory, options: LlmOptions) -> Turn:
    """The input of this run."""
    if not kept.messages:
        # The first run; or one whose first try never came to its end.
        return Turn(prompt=context.prompt, questions=_questions(context.callbacks))
    rest = list(context.callbacks)
    shown = _Shown(rest, options)
    results: dict[str, Any] = {}
    for call, waits in kept.pending.items():
        if waits.kind != "wait":
            mine = [callback for callback in rest if _answers(callback, waits)]
            rest = [callback for callback in rest if callback not in mine]
            results[call] = shown.text(mine) if mine else kept.arrived.get(call, "")
    nothing_else = not rest and not context.prompts and not context.missing
    if nothing_else and len(kept.pending) == len(results) > sum(map(bool, results.values())):
        # They were made together, and the model goes on when all of them have come.
        return Turn(history=kept.messages, arrived={call: text for call, text in results.items() if text})
    for call, waits in kept.pending.items():
        if waits.kind == "wait":
            results[call] = "\n\n".join(filter(None, [shown.text(rest), describe_missing(context.missing)]))
            rest = []
    for call, text in results.items():
        if not text:
            results[call] = _ASKED if rest or context.prompts else _STILL_WAITS
    unasked = shown.text(rest)
    said = defuse("\n\n".join(context.prompts))
    in_system = bool(unasked) and options.callback_role == "system"
    parts = [] if in_system else [unasked]
    if "wait" not in {waits.kind for waits in kept.pending.values()}:
        parts.append(describe_missing(context.missing))
    prompt = "\n\n".join(filter(None, [*parts, said]))
    if not prompt and not results:
        prompt = "Continue." if in_system else "Continue with your task."
    return Turn(
        prompt=prompt,
        history=kept.messages,
        results=DeferredToolResults(calls=results) if results else None,
        instructions=unasked if in_system else "",
        questions=_questions(context.callbacks),
    )


def _questions(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    return tuple(callback for callback in callbacks if callback.can_reply)


def _answers(callback: Callback, waits: Pending) -> bool:
    """Whether a callback is what a tool call waits for."""
    if waits.kind == "child":
        return callback.kind == "completion" and callback.session == waits.target
    return callback.kind == "reply" and callback.question == waits.target


class _Shown:
    """Callbacks as the model sees them: all of one run share the bytes that it may spend on them."""

    def __init__(self, callbacks: Sequence[Callback], options: LlmOptions) -> None:
        limits = options.limits
        # A token has about four bytes; the callbacks of one run take half of the memory at most.
        together = min(limits.callbacks_bytes, limits.memory_tokens * 2)
        self._bytes = max(_LEAST_BYTES, min(limits.callback_bytes, together // max(1, len(callbacks))))

    def text(self, callbacks: Sequence[Callback]) -> str:
        return render_callbacks(callbacks, max_bytes=self._bytes, read_on=_read_on)


def _read_on(callback: Callback) -> str:
    return f'read_result("{callback.session}", offset) reads on'
