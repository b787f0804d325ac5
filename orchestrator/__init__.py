"""Trees of agents on Celery and Redis that never lose, double or forge a wake-up.

The names below are the public surface; everything else may change. Each is imported when it is first used,
so that an agents file and `celery …` stay quick to load.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.agents.definition import AgentDefinition, agent, define_agent
    from orchestrator.agents.model_agents import model_agent
    from orchestrator.client.approvals import Approval
    from orchestrator.client.async_client import AsyncClient
    from orchestrator.client.client import Client
    from orchestrator.client.current import CurrentSession, current_session
    from orchestrator.config.settings import Settings, load_settings
    from orchestrator.dispatch.recurring import recurring
    from orchestrator.envelope.bodies import (
        ApiContract,
        Artifact,
        Attempt,
        Blocker,
        Completion,
        Constraint,
        Criterion,
        CriterionResult,
        Deliverable,
        Dependency,
        ErrorDetails,
        ErrorReport,
        EscalationMatter,
        File,
        FileReference,
        FocusArea,
        Metric,
        Objective,
        Output,
        Query,
        QueryContext,
        Recommendation,
        RecoveryOption,
        Review,
        StatusUpdate,
        Task,
        TaskContext,
    )
    from orchestrator.envelope.model import RetryPolicy
    from orchestrator.errors import (
        AgentsFileError,
        AwaitsApproval,
        BudgetExceeded,
        ConfigurationError,
        EmptyPrompt,
        LimitExceeded,
        OrchestraError,
        Retry,
        ServerUnavailable,
        SessionDeleted,
        SessionFailed,
        SessionStopped,
        StepFailed,
        StepMismatch,
        UnknownAgent,
        UnknownSession,
    )
    from orchestrator.ledger.live_text import LiveEvent
    from orchestrator.ledger.model import Session, SessionState
    from orchestrator.policy.approval import Decision
    from orchestrator.policy.budget import Budget
    from orchestrator.policy.callback import Callback
    from orchestrator.policy.callback_text import parse_callbacks
    from orchestrator.worker.context.context import Context
    from orchestrator.worker.context.prices import cost_of

__all__ = [
    "AgentDefinition",
    "AgentsFileError",
    "ApiContract",
    "Approval",
    "Artifact",
    "AsyncClient",
    "Attempt",
    "AwaitsApproval",
    "Blocker",
    "Budget",
    "BudgetExceeded",
    "Callback",
    "Client",
    "Completion",
    "ConfigurationError",
    "Constraint",
    "Context",
    "Criterion",
    "CriterionResult",
    "CurrentSession",
    "Decision",
    "Deliverable",
    "Dependency",
    "EmptyPrompt",
    "ErrorDetails",
    "ErrorReport",
    "EscalationMatter",
    "File",
    "FileReference",
    "FocusArea",
    "LimitExceeded",
    "LiveEvent",
    "Metric",
    "Objective",
    "OrchestraError",
    "Output",
    "Query",
    "QueryContext",
    "Recommendation",
    "RecoveryOption",
    "Retry",
    "RetryPolicy",
    "Review",
    "ServerUnavailable",
    "Session",
    "SessionDeleted",
    "SessionFailed",
    "SessionState",
    "SessionStopped",
    "Settings",
    "StatusUpdate",
    "StepFailed",
    "StepMismatch",
    "Task",
    "TaskContext",
    "UnknownAgent",
    "UnknownSession",
    "agent",
    "cost_of",
    "current_session",
    "define_agent",
    "load_settings",
    "model_agent",
    "parse_callbacks",
    "recurring",
]

#: The names of each module.
_NAMES = {
    "orchestrator.agents.definition": "AgentDefinition agent define_agent",
    "orchestrator.agents.model_agents": "model_agent",
    "orchestrator.client.approvals": "Approval",
    "orchestrator.client.async_client": "AsyncClient",
    "orchestrator.client.client": "Client",
    "orchestrator.client.current": "CurrentSession current_session",
    "orchestrator.config.settings": "Settings load_settings",
    "orchestrator.dispatch.recurring": "recurring",
    "orchestrator.envelope.bodies": (
        "ApiContract Artifact Attempt Blocker Completion Constraint Criterion CriterionResult Deliverable "
        "Dependency ErrorDetails ErrorReport EscalationMatter File FileReference FocusArea Metric "
        "Objective Output Query QueryContext Recommendation RecoveryOption Review StatusUpdate Task "
        "TaskContext"
    ),
    "orchestrator.envelope.model": "RetryPolicy",
    "orchestrator.errors": (
        "AgentsFileError AwaitsApproval BudgetExceeded ConfigurationError EmptyPrompt LimitExceeded "
        "OrchestraError Retry ServerUnavailable SessionDeleted SessionFailed SessionStopped StepFailed "
        "StepMismatch UnknownAgent UnknownSession"
    ),
    "orchestrator.ledger.live_text": "LiveEvent",
    "orchestrator.ledger.model": "Session SessionState",
    "orchestrator.policy.approval": "Decision",
    "orchestrator.policy.budget": "Budget",
    "orchestrator.policy.callback": "Callback",
    "orchestrator.policy.callback_text": "parse_callbacks",
    "orchestrator.worker.context.context": "Context",
    "orchestrator.worker.context.prices": "cost_of",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "app":  # `celery -A orchestrator` asks for it
        return _import_app()
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def _import_app() -> Any:
    """Import the Celery app, and nothing from the working directory, which Celery puts first while it looks for apps."""
    path = list(sys.path)
    sys.path[:] = [entry for entry in path if entry not in {"", os.getcwd()}]  # noqa: PTH109  (as Celery spells it)
    try:
        return import_module("orchestrator.celery").app
    finally:
        sys.path[:] = path


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
