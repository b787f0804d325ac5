"""Model agents in Python: a model with instructions and tools, or a ``pydantic_ai.Agent`` that is used as it is.

    lead = model_agent("lead", role="coordinator", tier="opus", instructions="You lead a review.")

What it returns is the agent's definition. It is kept in the module that calls, as the decorator `agent` does.
"""

from __future__ import annotations

import inspect
from typing import Any

from orchestrator.agents.definition import FIELDS, MODULE_ATTRIBUTE, AgentDefinition, define_agent


def model_agent(name: str, **settings: Any) -> AgentDefinition:
    """Define an agent that a model runs.

    Args:
        name: letters, digits, dots, dashes and underscores; what others delegate to.
        settings: those of `agent` (`role`, `tier`, `attempts`, `description`, `may_send_to`, …) and those of
            `LlmOptions` (`model`, `instructions`, `tools`, `output`, `limits`, `agent`, …).

    Raises:
        ConfigurationError: there is no such setting, or a value is not allowed.
    """
    caller = inspect.currentframe()
    caller = caller.f_back if caller is not None else None
    fields = {key: value for key, value in settings.items() if key in FIELDS and key != "executor"}
    options = {key: value for key, value in settings.items() if key not in fields}
    if "escalation" in fields:
        fields["escalates_to"] = fields.pop("escalation")
    definition = define_agent(
        name,
        executor="llm",
        options=options,
        source=f"{caller.f_code.co_filename}:{caller.f_lineno}" if caller is not None else name,
        **fields,
    )
    if caller is not None:
        caller.f_globals.setdefault(MODULE_ATTRIBUTE, []).append(definition)
    return definition
