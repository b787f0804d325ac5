"""Executors, which run agents: a module or package each, found by the name in the agent's definition."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Protocol, cast

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options import EXECUTORS, LlmOptions
from orchestrator.config.settings import Settings
from orchestrator.policy.budget import fits
from orchestrator.worker.context.context import Context


class Executor(Protocol):
    """Runs the agents of one kind. Each executor module has these two functions."""

    def execute(self, definition: AgentDefinition, context: Context) -> str:
        """Run the agent once; its answer as text.

        Raises:
            Exception: whatever the agent raises.
        """
        ...

    def explain(self, error: BaseException, definition: AgentDefinition, /) -> str:
        """Return a line for the agent's delegator about what ended its run."""
        ...


def executor_of(definition: AgentDefinition) -> Executor:
    """The executor that runs an agent."""
    return cast(Executor, import_module(EXECUTORS[definition.record.executor].module))


def check_models(agents: Iterable[AgentDefinition], settings: Settings) -> str:
    """Import what runs the model agents among these, and make their models, the clients of their providers included.

    A worker does so before it forks its pool: it takes seconds, and each process would do it at its first such run.
    Returns a sentence about the patterns of `provider_limits` that fit none of these models, or ''.

    Raises:
        ConfigurationError: a model cannot be asked, as its name is wrong, its client is not installed or its key is missing.
    """
    models: set[tuple[str, str]] = set()
    for definition in agents:
        if isinstance(definition.options, LlmOptions):
            from orchestrator.worker.executors.llm.assembly import check_model  # needs the extra `llm`

            models.update(check_model(definition, definition.options, settings))
    idle = [
        pattern for pattern in settings.provider_limits if not any(fits(pattern, *model) for model in models)
    ]
    if not models or not idle:
        return ""
    return (
        f"provider_limits: {', '.join(map(repr, idle))} {'fit' if len(idle) > 1 else 'fits'} no model of the agents here, which are "
        f"{', '.join(sorted(map('/'.join, models)))}; write a pattern of these names, unless functions or other workers call it"
    )
