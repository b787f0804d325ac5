"""Tool calls of a model that a person approves first: which they are, what is asked, and what an answer makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic_ai import ToolApproved, ToolDenied
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.tools import RunContext, ToolDefinition

from orchestrator.agents.options import LlmOptions
from orchestrator.errors import ConfigurationError, InputError, LimitExceeded, ModelFailed
from orchestrator.policy.approval import Decision, canonical, digest_of, refused
from orchestrator.policy.guarded_tags import defuse
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.llm.current import Pending

#: What a tool may say when it asks for approval itself: `ApprovalRequired(metadata={"reason": …})`.
_REASON = "reason"


@dataclass
class NeedsApproval(AbstractCapability[Any]):
    """Asks for approval of the calls of tools that the agent's definition names."""

    agent: str
    patterns: tuple[str, ...]

    async def prepare_tools(
        self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]
    ) -> list[ToolDefinition]:
        """See that each name is one of a tool: a misspelt one would let its tool be called unasked.

        Raises:
            ConfigurationError: one is none.
        """
        names = [tool.name for tool in tool_defs]
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ConfigurationError(
                    f"agent {self.agent!r}: approve names the tool {pattern!r}, which it does not have "
                    f"(it has: {', '.join(sorted(names)) or 'none'})"
                )
        return tool_defs

    async def after_tool_validate(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: dict[str, Any]
    ) -> dict[str, Any]:
        """Hold a call back that nobody has approved.

        Raises:
            ApprovalRequired: a person is to be asked.
        """
        named = any(fnmatchcase(tool_def.name, pattern) for pattern in self.patterns)
        if named and tool_def.kind != "output" and not ctx.tool_call_approved:
            raise ApprovalRequired
        return args


def ask_people(
    context: Context,
    options: LlmOptions,
    calls: Sequence[ToolCallPart],
    *,
    metadata: Mapping[str, Mapping[str, Any]],
    conversation: Sequence[ModelMessage],
    kept: Sequence[ModelMessage],
) -> dict[str, Pending]:
    """Ask for the approval of each of these calls; return what each waits for.

    ``kept`` is what is kept of the conversation. The calls are made from it afterwards.

    Raises:
        ModelFailed: what is kept is not what would be approved, or it is longer than anybody reads.
        ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
    """
    found = {}
    for asked in calls:
        call = _call(conversation, asked.tool_call_id) or asked
        if _call(kept, call.tool_call_id) != call:
            raise ModelFailed(
                context.agent,
                f"the arguments of its tool {call.tool_name!r}, which a person is to approve, do not fit into its memory; "
                "raise memory_tokens in its limits",
            )
        try:
            approval, _ = context.approvals.post(
                call.tool_name,
                call.args_as_dict(),
                reason=str(metadata.get(call.tool_call_id, {}).get(_REASON, "")),
                timeout_s=options.approval.timeout_s,
                default=options.approval.default,
                key=call.tool_call_id,
            )
        except InputError as error:
            raise ModelFailed(context.agent, str(error)) from None
        except LimitExceeded as error:
            found[call.tool_call_id] = Pending(kind="approval", tool=call.tool_name, refused=str(error))
            continue
        found[call.tool_call_id] = Pending(
            kind="approval",
            target=approval,
            tool=call.tool_name,
        )
    return found


def decision_of(context: Context, messages: Sequence[ModelMessage], call: str, waits: Pending) -> Decision:
    """Return a person's decision about a call, as it would be made now.

    Raises:
        ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
    """
    if waits.refused:
        return refused(waits.target, waits.refused)
    part = _call(messages, call)
    if part is None:
        return refused(waits.target, "its call is not in the memory of the session any more")
    try:
        digest = digest_of(part.tool_name, canonical(part.args_as_dict(), tool=part.tool_name))
    except InputError as error:
        return refused(waits.target, str(error))
    return context.approvals.delivered(waits.target, digest=digest)


def verdict_on(tool: str, decision: Decision) -> ToolApproved | ToolDenied:
    """Return what the model's call gets: approval, or a denial with its reason."""
    if decision.approved:
        return ToolApproved()
    why = f": {decision.comment}" if decision.comment else "."
    who = "by a person" if decision.how == "answered" else "because nobody approved it"
    return ToolDenied(f"The call of {tool} was denied {who}{why}")


def metadata_of(decision: Decision) -> dict[str, Any]:
    """Return the metadata of an approved call, which its tool finds in `ctx.tool_call_metadata`."""
    return {"approval": decision.approval, "comment": decision.comment, "by": decision.by}


def comment_on(tool: str, decision: Decision) -> str:
    """The comment of the person who approved, for the model; else empty."""
    if not (decision.approved and decision.comment and decision.how == "answered"):
        return ""
    return defuse(f"The call of {tool} was approved, with the comment: {decision.comment}")


def _call(messages: Sequence[ModelMessage], call: str) -> ToolCallPart | None:
    """A tool call as the model made it, and as it is made once it is approved."""
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            for part in message.parts:
                if isinstance(part, ToolCallPart) and part.tool_call_id == call:
                    return part
    return None
