"""A run of a model agent: from the memory of the last run and what has come since, to the answer or the next wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_ai import AgentRunResult, DeferredToolRequests, DeferredToolResults
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.usage import UsageLimits

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options import LlmOptions
from orchestrator.envelope.bodies import ErrorReport, TaskCompletion
from orchestrator.errors import ModelFailed
from orchestrator.transcript.of_models import listening
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.spending import cost_of
from orchestrator.worker.executors.llm import memory
from orchestrator.worker.executors.llm.approvals import NeedsApproval, ask_people
from orchestrator.worker.executors.llm.assembly import agent_of, answers_in_text, as_text, output_type_of_runs
from orchestrator.worker.executors.llm.current import ModelRun, Pending, entered
from orchestrator.worker.executors.llm.durability import Durability
from orchestrator.worker.executors.llm.tree_tools import tree_toolset
from orchestrator.worker.executors.llm.turn import Turn, next_turn, run_coroutine, show
from orchestrator.worker.executors.protocol import protocol_text
from orchestrator.worker.executors.text import TextAnswer, finish

#: What stands in for the answer of a run that ends because its tool calls wait.
_WAITS = "waits for: "


def converse(definition: AgentDefinition, options: LlmOptions, context: Context) -> str:
    """Run the model until it answers or waits; return its answer, or what it waits for.

    Raises:
        NoResponse: an answer in text had no tag, twice.
        Exception: whatever the provider, a tool or the ledger raised.
    """
    context.replays = True
    if context.correction:  # the conversation goes on with why its answer was not accepted
        turn = Turn(prompt=context.prompt, history=memory.load(context.new_memory or "").messages)
    else:
        kept = memory.load(context.read_memory())
        turn = next_turn(context, kept, options)
        if turn.kept is not None:
            context.new_memory = turn.kept.model_dump_json()
            there = {*turn.kept.arrived, *turn.kept.decided}
            return _wait(context, {call: kept.pending[call] for call in kept.pending if call not in there})
    conversation = _Conversation(definition, options, context, turn)
    try:
        text = conversation.answer()
    except _Waiting:
        conversation.keep()
        return _wait(context, conversation.pending)
    conversation.keep()
    if text.strip():
        for question in turn.questions:  # what its parent asked, where the model has not replied by a tool
            context.reply(question, text)
    context.wait_for(options.resume)
    return text


class _Waiting(Exception):
    """The run ends with tool calls that wait."""


class _Conversation:
    """The conversation of one run. The limits of the run include reminders."""

    def __init__(
        self, definition: AgentDefinition, options: LlmOptions, context: Context, turn: Turn
    ) -> None:
        self._definition = definition
        self._options = options
        self._context = context
        self._turn = turn
        self._run = ModelRun(definition=definition, options=options, context=context)
        self._result: AgentRunResult[Any] | None = None
        self._in_text = answers_in_text(options)
        #: The tool calls that the run ends with, and what each waits for.
        self.pending: dict[str, Pending] = {}
        #: Those of them that a person approves, and what their tools say about that.
        self._approvals: list[ToolCallPart] = []
        self._metadata: dict[str, dict[str, Any]] = {}

    def answer(self) -> str:
        """Have the model go on; its answer. One in text goes the way of all answers in text.

        Raises:
            _Waiting: it has not answered; `pending` says what for.
        """
        turn = self._turn
        result = self._ask(turn.prompt, turn.history, turn.results)
        if not self._in_text:
            if (cut := _text_of(result)).cut_off:
                raise ModelFailed(
                    self._definition.name, f"its answer was cut off at {cut.limit}; raise the limit"
                )
            if isinstance(result.output, TaskCompletion | ErrorReport):
                return self._context.end_with(result.output)
            return as_text(self._definition.name, result.output)
        return finish(self._context, _text_of(result), self._say, self._read).result

    def keep(self) -> None:
        """Have the run's commit keep the conversation."""
        if self._result is None:
            return
        messages = memory.shorten(self._result.all_messages(), self._options)
        self.pending |= ask_people(
            self._context,
            self._options,
            self._approvals,
            metadata=self._metadata,
            conversation=self._result.all_messages(),
            kept=messages,
        )
        kept = memory.Memory(messages=messages, pending=self.pending)
        if self._approvals:  # who asked before is answered by what the run comes to after the approvals
            kept.asked = list(self._turn.questions)
        self._context.new_memory = kept.model_dump_json()

    def _say(self, text: str) -> TextAnswer:
        assert self._result is not None
        return _text_of(self._ask(text, self._result.all_messages(), None))

    def _read(self) -> Iterator[str]:
        """Yield the texts of tools and people in this conversation."""
        assert self._result is not None
        for message in self._result.all_messages():
            for part in message.parts:
                if isinstance(part, ToolReturnPart):
                    yield part.model_response_str()
                elif isinstance(part, UserPromptPart) and isinstance(part.content, str):
                    yield part.content

    def _ask(
        self, prompt: str, history: list[ModelMessage], results: DeferredToolResults | None
    ) -> AgentRunResult[Any]:
        asked = self._run_agent(prompt, history, results)
        grace_s = self._context.settings.stop_grace_s
        self._result = result = run_coroutine(asked, self._context.check, grace_s=grace_s)
        self._context.steps.mark_answer()
        if isinstance(result.output, DeferredToolRequests):
            self.pending = _pending(self._definition, result.output)
            self._approvals = result.output.approvals
            self._metadata = result.output.metadata
            raise _Waiting
        return result

    async def _run_agent(
        self, prompt: str, history: list[ModelMessage], results: DeferredToolResults | None
    ) -> AgentRunResult[Any]:
        definition, options, context = self._definition, self._options, self._context
        agent = agent_of(definition, options, context.settings)
        instructions = (self._protocol(), self._turn.instructions)
        capabilities: list[AbstractCapability[Any]] = [Durability(event_stream_handler=show)]
        if options.approve:
            capabilities.append(NeedsApproval(definition.name, options.approve))
        with entered(self._run), listening(context.turns, history, cost_of, options.prices):
            return await agent.run(
                prompt or None,
                message_history=history or None,
                deferred_tool_results=results,
                instructions="\n\n".join(filter(None, instructions)) or None,
                output_type=output_type_of_runs(agent),
                deps=options.deps(context) if options.deps is not None else context,
                usage=self._result.usage if self._result is not None else None,
                usage_limits=UsageLimits(
                    request_limit=options.limits.requests,
                    tool_calls_limit=options.limits.tool_calls,
                    total_tokens_limit=options.limits.tokens,
                ),
                toolsets=[tree_toolset(definition, options)],
                capabilities=capabilities,
                infer_name=False,
            )

    def _protocol(self) -> str:
        """The protocol, as the model reads it. It reads of the tag of its answer in any case."""
        context = self._context
        return protocol_text(
            self._definition,
            sub_session=self._in_text and bool(context.parent),
            folder=context.settings.prompts,
        )


def _text_of(result: AgentRunResult[Any]) -> TextAnswer:
    taken = result.response.usage.output_tokens
    return TextAnswer(
        text=str(result.output),
        cut_off=result.response.finish_reason == "length",
        limit=f"its limit of {taken} tokens (max_tokens)" if taken else "its limit (max_tokens)",
    )


def _pending(definition: AgentDefinition, requests: DeferredToolRequests) -> dict[str, Pending]:
    """Return for each deferred tool call what it waits for."""
    found = {}
    for call in requests.calls:
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
    """Set what this session waits for, by the tool calls that wait; return the same as text for people."""
    waits = [one for one in pending.values() if one.kind == "wait"]
    if waits:
        context.wait_for(waits[0].mode, k=waits[0].k, deadline_s=waits[0].timeout_s)
    else:
        # Every call waits for something of its own: a reply resumes at once, and the ends come together.
        context.wait_for("all")
    return _WAITS + ", ".join(sorted({one.tool for one in pending.values()}))
