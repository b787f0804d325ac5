"""Model agents in Python: a model with instructions and tools, or a ``pydantic_ai.Agent`` that is used as it is.

    lead = model_agent("lead", role="coordinator", tier="opus", instructions="You lead a review.")

What it returns is the agent's definition. It is kept in the module that calls, as the decorator `agent` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast

from orchestrator.agents.definition import FIELDS, MODULE_ATTRIBUTE, AgentDefinition, StepPolicy, define_agent
from orchestrator.agents.registry import Role, Tier
from orchestrator.policy.budget import Budget
from orchestrator.policy.retry import Backoff
from orchestrator.policy.versions import OnDeploy

if TYPE_CHECKING:
    from orchestrator.agents.options.llm import ApprovalTerms, McpServer, ModelLimits, ModelPrices


class ModelAgentSettings(TypedDict, total=False):
    """The settings of :func:`model_agent`, for type checkers and editors; an agent's own first."""

    description: str
    role: Role
    tier: Tier | None
    queue: str | None
    attempts: int
    backoff: Backoff
    backoff_s: float
    backoff_max_s: float
    time_limit_s: float | None
    runs_at_once: int | None
    escalation: str
    may_send_to: Sequence[str] | None
    accepts_from: Sequence[str] | None
    tags: Sequence[str]
    steps: StepPolicy
    answer: Literal["text", "plan"]
    budget: Budget | Mapping[str, Any] | str | None
    version: str | None
    on_deploy: OnDeploy
    encrypt: bool

    model: Any
    base_url: str
    key_env: str
    fallbacks: Sequence[str]
    instructions: str
    instructions_file: str | Path | None
    tools: Sequence[Callable[..., Any] | str]
    mcp: Sequence[McpServer | Mapping[str, Any]]
    approve: Sequence[str]
    approval: ApprovalTerms | Mapping[str, Any]
    output: Any
    output_mode: Literal["tool", "native", "prompted"]
    limits: ModelLimits | Mapping[str, Any]
    settings: Mapping[str, Any]
    tree_tools: Sequence[str] | None
    resume: Literal["any", "all"]
    protocol: bool | Literal["compact"]
    callback_role: Literal["user", "system"]
    shorten: Any
    agent: Any
    deps: Any
    prices: ModelPrices | Mapping[str, Any] | None
    context: int | None
    stream: bool


def model_agent(name: str, **settings: Unpack[ModelAgentSettings]) -> AgentDefinition:
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
    given = cast("dict[str, Any]", settings)
    fields = {key: value for key, value in given.items() if key in FIELDS and key != "executor"}
    options = {key: value for key, value in given.items() if key not in fields}
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
