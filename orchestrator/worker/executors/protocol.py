"""What an executor tells its agent about the protocol."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Final

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options import LlmOptions
from orchestrator.agents.prompts import render_prompt
from orchestrator.policy.response_tag import ANSWER_NOTE

#: The MCP tools of a session, in the order in which an agent uses them (see `orchestrator.mcp`).
SESSION_TOOLS: Final = (
    "delegate",
    "wait",
    "ask",
    "answer",
    "raise_callback",
    "request_approval",
    "decision",
    "reply",
    "message",
    "status",
    "results",
    "read_result",
    "agents",
    "session",
)


def takes_tagged_answers(definition: AgentDefinition) -> bool:
    """Whether a session of the agent with a parent must wrap its answer in a tag: where it answers in text."""
    if isinstance(definition.options, LlmOptions):
        from orchestrator.worker.executors.llm.assembly import answers_in_text  # needs the extra `llm`

        return answers_in_text(definition.options)
    return definition.record.executor == "command"


def protocol_text(definition: AgentDefinition, *, sub_session: bool, folder: Path | None) -> str:
    """The protocol, as the agent reads it: whole, compact, or no more than the tag of its answer, as its options say.

    Raises:
        ConfigurationError: an own text is not usable, or the agent names an unknown tool.
    """
    protocol = getattr(definition.options, "protocol", True)
    if not protocol:
        return ANSWER_NOTE if sub_session else ""
    return render_prompt(
        definition,
        tools=_tools(definition),
        sub_session=sub_session,
        compact=protocol == "compact",
        folder=folder,
    )


def _tools(definition: AgentDefinition) -> dict[str, str]:
    if definition.record.executor == "command":
        return dict.fromkeys(SESSION_TOOLS, "")
    if isinstance(definition.options, LlmOptions):
        from orchestrator.worker.executors.llm.tree_tools import tools_of  # needs the extra `llm`

        found = tools_of(definition, definition.options)
        return {name: (inspect.getdoc(function) or "").partition("\n")[0] for name, function in found.items()}
    return {}
