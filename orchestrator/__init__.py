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
        ApprovalRefused,
        AwaitsApproval,
        BudgetExceeded,
        ClaimLost,
        ConfigurationError,
        DamagedRecord,
        DecryptionError,
        EmptyPrompt,
        InputError,
        InvalidEnvelope,
        KeyInUse,
        KeyringError,
        LimitExceeded,
        NoReply,
        NotGenuine,
        OrchestraError,
        PayloadError,
        PlanError,
        Retry,
        RunParked,
        RunSleeps,
        ServerUnavailable,
        SessionDeleted,
        SessionFailed,
        SessionStopped,
        StepFailed,
        StepMismatch,
        TaskFailed,
        UnknownAgent,
        UnknownSession,
        WouldDeadlock,
        WrongState,
    )
    from orchestrator.ledger.live_text import LiveEvent
    from orchestrator.ledger.model import Session, SessionState
    from orchestrator.policy.approval import Decision
    from orchestrator.policy.budget import Budget
    from orchestrator.policy.callback import Callback
    from orchestrator.policy.callback_text import parse_callbacks
    from orchestrator.policy.response_tag import tag_extract
    from orchestrator.worker.context.context import Context
    from orchestrator.worker.context.spending import cost_of

__all__ = [
    "AgentDefinition",
    "AgentsFileError",
    "ApiContract",
    "Approval",
    "ApprovalRefused",
    "Artifact",
    "AsyncClient",
    "Attempt",
    "AwaitsApproval",
    "Blocker",
    "Budget",
    "BudgetExceeded",
    "Callback",
    "ClaimLost",
    "Client",
    "Completion",
    "ConfigurationError",
    "Constraint",
    "Context",
    "Criterion",
    "CriterionResult",
    "CurrentSession",
    "DamagedRecord",
    "Decision",
    "DecryptionError",
    "Deliverable",
    "Dependency",
    "EmptyPrompt",
    "ErrorDetails",
    "ErrorReport",
    "EscalationMatter",
    "File",
    "FileReference",
    "FocusArea",
    "InputError",
    "InvalidEnvelope",
    "KeyInUse",
    "KeyringError",
    "LimitExceeded",
    "LiveEvent",
    "Metric",
    "NoReply",
    "NotGenuine",
    "Objective",
    "OrchestraError",
    "Output",
    "PayloadError",
    "PlanError",
    "Query",
    "QueryContext",
    "Recommendation",
    "RecoveryOption",
    "Retry",
    "RetryPolicy",
    "Review",
    "RunParked",
    "RunSleeps",
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
    "TaskFailed",
    "UnknownAgent",
    "UnknownSession",
    "WouldDeadlock",
    "WrongState",
    "agent",
    "cost_of",
    "current_session",
    "define_agent",
    "load_settings",
    "model_agent",
    "parse_callbacks",
    "tag_extract",
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
    "orchestrator.envelope.bodies": (
        "ApiContract Artifact Attempt Blocker Completion Constraint Criterion CriterionResult Deliverable "
        "Dependency ErrorDetails ErrorReport EscalationMatter File FileReference FocusArea Metric "
        "Objective Output Query QueryContext Recommendation RecoveryOption Review StatusUpdate Task "
        "TaskContext"
    ),
    "orchestrator.envelope.model": "RetryPolicy",
    "orchestrator.errors": (
        "AgentsFileError ApprovalRefused AwaitsApproval BudgetExceeded ClaimLost ConfigurationError "
        "DamagedRecord DecryptionError EmptyPrompt InputError InvalidEnvelope KeyInUse KeyringError "
        "LimitExceeded NoReply NotGenuine OrchestraError PayloadError PlanError Retry RunParked "
        "RunSleeps ServerUnavailable SessionDeleted SessionFailed SessionStopped StepFailed StepMismatch "
        "TaskFailed UnknownAgent UnknownSession WouldDeadlock WrongState"
    ),
    "orchestrator.ledger.live_text": "LiveEvent",
    "orchestrator.ledger.model": "Session SessionState",
    "orchestrator.policy.approval": "Decision",
    "orchestrator.policy.budget": "Budget",
    "orchestrator.policy.callback": "Callback",
    "orchestrator.policy.callback_text": "parse_callbacks",
    "orchestrator.policy.response_tag": "tag_extract",
    "orchestrator.worker.context.context": "Context",
    "orchestrator.worker.context.spending": "cost_of",
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
