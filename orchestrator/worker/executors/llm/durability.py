"""Each model request and each tool call of a model agent as a durable step of its run.

It uses pydantic-ai's public interface for durable execution: the capability is added to each run, so that an agent
object that somebody else made needs nothing of this project.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, ClassVar, Final

from pydantic_ai.capabilities import WrapToolExecuteHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationId,
    EventStreamHandlerId,
    JournalCallableOperationBackend,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
)
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import RunContext, ToolDefinition

from orchestrator.display.text import well_formed
from orchestrator.worker.executors.llm import failures
from orchestrator.worker.executors.llm.current import current, current_context

#: What the names of steps may not have, and how long they may be.
_NOT_IN_NAMES: Final = re.compile(r"[#|\s]")
_NAME_CHARS: Final = 200

#: The tool call that is being executed: calls run side by side, so a count alone would not tell them apart.
_tool_call: ContextVar[ToolCallPart | None] = ContextVar("orchestra_tool_call", default=None)


class _Backend(JournalCallableOperationBackend[None]):
    """Hands each operation to the run's journal."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: None,
    ) -> object:
        run = current()
        if isinstance(operation_id, EventStreamHandlerId):
            return await body()  # nothing depends on it
        if isinstance(operation_id, ModelRequestId):
            run.requests += 1

        async def call() -> object:
            try:
                return _well_formed(await body())
            except Exception as error:
                asks_model = isinstance(operation_id, ModelRequestId)
                translated = failures.translate(error, run.definition.name) if asks_model else error
                if translated is error:
                    raise
                # A provider may repeat the key that it refuses: only the sentence is recorded.
                raise translated from None

        return await run.context.astep(_step_name(operation_id, name), call)


class Durability(BaseDurabilityCapability[Any]):
    """Makes model requests and tool calls durable steps of the current run."""

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="agent-orchestra",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={
            "function": "enter-always",
            # Each call connects by itself, so that one after the death of a server starts another server.
            "mcp": "enter-never",
            "dynamic": "enter-never",
        },
    )

    @property
    def in_durable_context(self) -> bool:
        """True while a run of a session is under way; elsewhere the agent works as it would without this project."""
        return current_context() is not None

    def get_durable_operation_backend(self) -> JournalCallableOperationBackend[None]:
        """The journal of the current run."""
        config = RoleBasedOperationConfig(model=None, event=None, capability=None, tool=None)
        return _Backend(agent_name=self.name, default_model_id=self.default_model_id, config=config)

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: Any,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        """Note which tool call is executed, for the name of its step."""
        token = _tool_call.set(call)
        try:
            return await handler(args)
        finally:
            _tool_call.reset(token)


def _well_formed(value: object) -> object:
    """A JSON value of a provider or tool that others can read."""
    text = json.dumps(value, ensure_ascii=False)
    fit = well_formed(text)
    return value if fit == text else json.loads(fit)


def _step_name(operation: DurableOperationId, name: str) -> str:
    """The name of a step: what people read in the log, and data that outlives a deploy."""
    match operation:
        case ModelRequestId():
            return "model"
        case ToolsetCallToolId():
            return step_of_tool(name.rpartition(":")[2])
        case _:
            return name.partition("__")[2] or name


def step_of_tool(name: str) -> str:
    """The name of the step that a tool call is: the tool, and the id that the model's answer gave the call."""
    call = _tool_call.get()
    text = f"tool:{name}" if call is None else f"tool:{call.tool_name}:{call.tool_call_id}"
    return _NOT_IN_NAMES.sub("_", text)[:_NAME_CHARS]
