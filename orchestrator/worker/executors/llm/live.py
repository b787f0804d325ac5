"""Live text of a model agent, shown while it is written, and kept with the output of the run.

A failure here costs the text of a moment, never the run.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any, Literal

import redis
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.tools import RunContext

from orchestrator.ledger.live_text import Earlier
from orchestrator.log import get_logger
from orchestrator.worker.execution.printing import note
from orchestrator.worker.executors.llm.current import current

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
