"""The protocol, as an executor explains it to its agent."""

from __future__ import annotations

from pathlib import Path

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options import EXECUTORS, LlmOptions
from orchestrator.agents.prompts import render_prompt
from orchestrator.operations.table import OF_SESSIONS
from orchestrator.policy.response_tag import ANSWER_NOTE


def takes_tagged_answers(definition: AgentDefinition) -> bool:
    """Return True if a session of the agent with a parent must wrap its answer in a tag, since it answers in text."""
    if isinstance(definition.options, LlmOptions):
        from orchestrator.worker.executors.llm.assembly import answers_in_text  # needs the extra `llm`

        return answers_in_text(definition.options)
    return EXECUTORS[definition.record.executor].tools == "command"


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
    if EXECUTORS[definition.record.executor].tools == "command":
        return dict.fromkeys(OF_SESSIONS, "")
    if isinstance(definition.options, LlmOptions):
        from orchestrator.worker.executors.llm.tree_tools import tools_of  # needs the extra `llm`

        found = tools_of(definition, definition.options)
        return {name: one.description for name, one in found.items()}
    return {}
