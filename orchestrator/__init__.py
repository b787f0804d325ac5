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
    from orchestrator.agents.definition import AgentDefinition, agent
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
    from orchestrator.policy.callback_text import Callback, parse_callbacks
    from orchestrator.worker.context.context import Context

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
    "current_session",
    "load_settings",
    "model_agent",
    "parse_callbacks",
    "recurring",
]

_HOME = {
    "AgentDefinition": "orchestrator.agents.definition",
    "Approval": "orchestrator.client.approvals",
    "ApiContract": "orchestrator.envelope.bodies",
    "Artifact": "orchestrator.envelope.bodies",
    "AsyncClient": "orchestrator.client.async_client",
    "Attempt": "orchestrator.envelope.bodies",
    "Blocker": "orchestrator.envelope.bodies",
    "Budget": "orchestrator.policy.budget",
    "Callback": "orchestrator.policy.callback_text",
    "Client": "orchestrator.client.client",
    "CurrentSession": "orchestrator.client.current",
    "Decision": "orchestrator.policy.approval",
    "Completion": "orchestrator.envelope.bodies",
    "Constraint": "orchestrator.envelope.bodies",
    "Context": "orchestrator.worker.context.context",
    "Criterion": "orchestrator.envelope.bodies",
    "CriterionResult": "orchestrator.envelope.bodies",
    "Deliverable": "orchestrator.envelope.bodies",
    "Dependency": "orchestrator.envelope.bodies",
    "ErrorDetails": "orchestrator.envelope.bodies",
    "ErrorReport": "orchestrator.envelope.bodies",
    "EscalationMatter": "orchestrator.envelope.bodies",
    "FocusArea": "orchestrator.envelope.bodies",
    "Review": "orchestrator.envelope.bodies",
    "File": "orchestrator.envelope.bodies",
    "FileReference": "orchestrator.envelope.bodies",
    "LiveEvent": "orchestrator.ledger.live_text",
    "Metric": "orchestrator.envelope.bodies",
    "Objective": "orchestrator.envelope.bodies",
    "Output": "orchestrator.envelope.bodies",
    "Query": "orchestrator.envelope.bodies",
    "QueryContext": "orchestrator.envelope.bodies",
    "Recommendation": "orchestrator.envelope.bodies",
    "RecoveryOption": "orchestrator.envelope.bodies",
    "RetryPolicy": "orchestrator.envelope.model",
    "Session": "orchestrator.ledger.model",
    "SessionState": "orchestrator.ledger.model",
    "Settings": "orchestrator.config.settings",
    "StatusUpdate": "orchestrator.envelope.bodies",
    "Task": "orchestrator.envelope.bodies",
    "TaskContext": "orchestrator.envelope.bodies",
    "agent": "orchestrator.agents.definition",
    "current_session": "orchestrator.client.current",
    "load_settings": "orchestrator.config.settings",
    "model_agent": "orchestrator.agents.model_agents",
    "parse_callbacks": "orchestrator.policy.callback_text",
    "recurring": "orchestrator.dispatch.recurring",
}


def __getattr__(name: str) -> Any:
    if name == "app":  # `celery -A orchestrator` asks for it
        return _import_app()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME.get(name, "orchestrator.errors")), name)
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
