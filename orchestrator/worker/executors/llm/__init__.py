"""Runs an agent that is a model: pydantic-ai drives the conversation, the ledger keeps each step of it.

One run of a session is one run of the model agent. It ends with the answer, or with tool calls that wait: then nothing
of it stays in the worker, and the next run goes on where it ended, with what came as the results of those calls.
"""

from __future__ import annotations

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options import LlmOptions
from orchestrator.errors import ConfigurationError
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.llm import failures
from orchestrator.worker.executors.llm.conversation import converse

__all__ = ["execute", "explain"]


def execute(definition: AgentDefinition, context: Context) -> str:
    """Let the model go on with the session; return its answer, or what it waits for.

    Raises:
        Retry: the provider is away or overloaded.
        OrchestraError: the run cannot go on, in one sentence.
    """
    options = definition.options
    if not isinstance(options, LlmOptions):
        raise ConfigurationError(f"agent {definition.name!r} has no options of a model agent")
    try:
        return converse(definition, options, context)
    except Exception as error:
        translated = failures.translate(error, definition.name, context.turns)
        if translated is error:
            raise
        raise translated from None


def explain(error: BaseException, _: AgentDefinition) -> str:
    """Return a line for the agent's delegator about what ended its run."""
    return failures.explain(error)
