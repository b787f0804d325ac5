"""A turn of a model agent: the task, a user's prompt or callbacks it begins with, its loop, and its text as it comes."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

import redis
from pydantic_ai import DeferredToolResults
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    ModelMessage,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.tools import RunContext

from orchestrator.agents.options import LlmOptions
from orchestrator.ledger.live_text import Earlier
from orchestrator.log import get_logger
from orchestrator.policy.approval import Decision
from orchestrator.policy.callback import Callback
from orchestrator.policy.callback_text import render_callbacks
from orchestrator.policy.guarded_tags import defuse
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.view import describe_missing
from orchestrator.worker.context.waits import share_this_thread
from orchestrator.worker.execution.printing import note
from orchestrator.worker.executors.llm.approvals import comment_on, decision_of, metadata_of, verdict_on
from orchestrator.worker.executors.llm.current import Pending, current
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


T = TypeVar("T")

#: Seconds between two looks at whether the run may go on.
_LOOK_S: Final = 0.5
#: Seconds after which an end by force has come, if it ends the process: of a pool of threads it does not.
_MORE_S: Final = 10.0

_lock = threading.Lock()
_loop: tuple[int, asyncio.AbstractEventLoop] | None = None


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop  # noqa: PLW0603  (one for each process)
    with _lock:
        if _loop is None or _loop[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(loop,), name="model-agents", daemon=True).start()
            _loop = (os.getpid(), loop)
        return _loop[1]


def _run(loop: asyncio.AbstractEventLoop) -> None:
    share_this_thread()
    while True:
        # A task that raises one of these ends the loop, on which others work, before its own error gets to its run.
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


async def _heard(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await it; what it raises after it was cancelled is for nobody, and no traceback for the log."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return await coroutine


def run_coroutine(coroutine: Coroutine[Any, Any, T], check: Callable[[], None], *, grace_s: float) -> T:
    """Run a coroutine on the loop of this process and return what it returns.

    ``check`` is called now and then; when it raises, the coroutine is cancelled and the error passes through. A tool that
    blocks the loop keeps it from every model agent of this process: its run has not ended before the loop is free, and so
    its end by force, after ``grace_s`` seconds, ends the process.

    Raises:
        BaseException: whatever the coroutine, ``check`` or a signal raises.
    """
    loop = _running_loop()
    future = asyncio.run_coroutine_threadsafe(_heard(coroutine), loop)
    try:
        while True:
            try:
                return future.result(timeout=_LOOK_S)
            except TimeoutError:
                if future.done():
                    return future.result()
                check()
    finally:
        if not future.done():
            future.cancel()
            free = threading.Event()
            loop.call_soon_threadsafe(free.set)
            free.wait(grace_s + _MORE_S)


#: Characters of a tool's result that are shown.
_RESULT_CHARS = 500

_log = get_logger()


async def show(_: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
    """Write the events of a model's answer, or of a tool call, to the live text of the session."""
    live = _Writer()
    async for event in events:
        live.take(event)


class _Writer:
    """The live text of the current run."""

    def __init__(self) -> None:
        self._run = current()
        self._begun = False

    def take(self, event: AgentStreamEvent) -> None:
        """Write one event."""
        try:
            self._take(event)
        except redis.RedisError as error:
            _log.warning("live-text-not-written", error=str(error))

    def _take(self, event: AgentStreamEvent) -> None:
        match event:
            case (
                PartStartEvent(part=TextPart(content=text))
                | PartDeltaEvent(delta=TextPartDelta(content_delta=text))
            ):
                self._begin()
                if text:
                    note(text)
                    self._run.context.write_live("text", text=text)
            case PartEndEvent(part=TextPart()):
                note("\n")
            case PartEndEvent(part=ToolCallPart() as part):
                note(f"{part.tool_name}({part.args_as_json_str()})\n")
            case PartStartEvent():
                self._begin()
            case FunctionToolCallEvent(part=part):
                self._write_call("call", part.tool_call_id, tool=part.tool_name)
            case FunctionToolResultEvent(part=part):
                shown = str(getattr(part, "content", ""))[:_RESULT_CHARS]
                self._write_call("result", part.tool_call_id, tool=str(part.tool_name), text=shown)
            case _:
                pass

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        context = self._run.context
        context.live.begin(context.session, context.run, self._run.requests, earlier=self._earlier())

    def _write_call(self, kind: Literal["call", "result"], call: str, **facts: str) -> None:
        """Write that a tool is called, or what it returned; not again what an earlier try wrote of the same call."""
        earlier = self._earlier()
        if earlier is None or (kind, call) not in earlier.calls:
            self._run.context.write_live(kind, call=call, **facts)

    def _earlier(self) -> Earlier | None:
        """Return what earlier tries of this run wrote; None in the first one."""
        run, context = self._run, self._run.context
        if context.attempt > 1 and run.earlier_live is None:
            run.earlier_live = context.live.earlier(context.session, context.run)
        return run.earlier_live
