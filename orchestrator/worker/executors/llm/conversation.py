"""One run of a model agent: from the memory of the last run and what has come since, to the answer or the next wait."""

from __future__ import annotations

from typing import Any

from pydantic_ai import AgentRunResult, DeferredToolRequests
from pydantic_ai.usage import UsageLimits

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options import LlmOptions
from orchestrator.errors import ModelFailed
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.llm import live, memory
from orchestrator.worker.executors.llm.assembly import agent_of, as_text, output_type_of_runs
from orchestrator.worker.executors.llm.current import ModelRun, Pending, entered
from orchestrator.worker.executors.llm.durability import Durability
from orchestrator.worker.executors.llm.tree_tools import tree_toolset
from orchestrator.worker.executors.llm.turn import Turn, next_turn
from orchestrator.worker.executors.protocol import protocol_text

#: What stands in for the answer of a run that ends because its tool calls wait.
_WAITS = "waits for: "


async def converse(definition: AgentDefinition, options: LlmOptions, context: Context) -> str:
    """Run the model until it answers or waits; its answer, or what it waits for.

    Raises:
        Exception: whatever the provider, a tool or the ledger raised.
    """
    agent = agent_of(definition, options, context.settings)
    if context.correction:  # the conversation goes on with why its answer was not accepted
        turn = Turn(prompt=context.prompt, history=memory.load(context.new_memory or "").messages)
    else:
        kept = memory.load(context.read_memory())
        turn = next_turn(context, kept, options)
        if turn.arrived is not None:
            context.new_memory = memory.dump(turn.history, kept.pending, turn.arrived)
            waits = {call: kept.pending[call] for call in kept.pending if call not in turn.arrived}
            return _wait(context, waits)
    with entered(ModelRun(definition=definition, options=options, context=context)):
        result: AgentRunResult[Any] = await agent.run(
            turn.prompt or None,
            message_history=turn.history or None,
            deferred_tool_results=turn.results,
            instructions="\n\n".join(
                filter(None, [_protocol(definition, options, context), turn.instructions])
            )
            or None,
            output_type=output_type_of_runs(agent),
            deps=options.deps(context) if options.deps is not None else context,
            usage_limits=UsageLimits(
                request_limit=options.limits.requests,
                tool_calls_limit=options.limits.tool_calls,
                total_tokens_limit=options.limits.tokens,
            ),
            toolsets=[tree_toolset(definition, options)],
            capabilities=[Durability(event_stream_handler=live.show)],
            infer_name=False,
        )
    pending: dict[str, Pending] = {}
    output = result.output
    if isinstance(output, DeferredToolRequests):
        pending = _pending(definition, output)
    messages = memory.shorten(result.all_messages(), options)
    context.new_memory = memory.dump(messages, pending)
    if pending:
        return _wait(context, pending)
    _reply_to_questions(context, turn, text := as_text(agent, output))
    context.wait_for(options.resume)
    return text


def _protocol(definition: AgentDefinition, options: LlmOptions, context: Context) -> str:
    """The protocol as the model is told it. Its answers are values of a type and need no tag."""
    if not options.protocol:
        return ""
    return protocol_text(definition, sub_session=False, folder=context.settings.prompts)


def _pending(definition: AgentDefinition, requests: DeferredToolRequests) -> dict[str, Pending]:
    """What each tool call that did not end waits for."""
    found = {}
    for call in [*requests.calls, *requests.approvals]:
        metadata = requests.metadata.get(call.tool_call_id)
        if metadata is None:
            raise ModelFailed(
                definition.name,
                f"its tool {call.tool_name!r} is to be run by somebody else, and nobody here can; "
                "leave the tool out, or have it return a result",
            )
        found[call.tool_call_id] = Pending.model_validate({**metadata, "tool": call.tool_name})
    return found


def _wait(context: Context, pending: dict[str, Pending]) -> str:
    """Say what this session waits for, by the tool calls that do; the same for people."""
    waits = [one for one in pending.values() if one.kind == "wait"]
    if waits:
        first = waits[0]
        mode: Any = first.mode
        context.wait_for(mode, k=first.k, deadline_s=first.timeout_s)
    else:
        # Every call waits for something of its own: a reply resumes at once, and the ends come together.
        context.wait_for("all")
    return _WAITS + ", ".join(sorted({one.tool for one in pending.values()}))


def _reply_to_questions(context: Context, turn: Turn, text: str) -> None:
    """The answer of a run answers what its parent asked, where the model has not done so by a tool."""
    for question in turn.questions:
        if question.session == context.parent and text.strip():
            context.reply(question, text)
