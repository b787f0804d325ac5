"""Trees of agents on Celery and Redis that never lose, double or forge a wake-up.

The names below are the public surface; everything else may change. Each is imported when it is first used,
so that an agents file and `celery …` stay quick to load.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.agents.definition import AgentDefinition, agent
    from orchestrator.agents.model_agents import model_agent
    from orchestrator.client.async_client import AsyncClient
    from orchestrator.client.client import Client
    from orchestrator.client.current import CurrentSession, current_session
    from orchestrator.config.settings import Settings, load_settings
    from orchestrator.errors import (
        AgentsFileError,
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
    from orchestrator.ledger.model import Session, SessionState
    from orchestrator.policy.callback_text import Callback, parse_callbacks

__all__ = [
    "AgentDefinition",
    "AgentsFileError",
    "AsyncClient",
    "Callback",
    "Client",
    "ConfigurationError",
    "CurrentSession",
    "EmptyPrompt",
    "LimitExceeded",
    "OrchestraError",
    "Retry",
    "ServerUnavailable",
    "Session",
    "SessionDeleted",
    "SessionFailed",
    "SessionState",
    "SessionStopped",
    "Settings",
    "StepFailed",
    "StepMismatch",
    "UnknownAgent",
    "UnknownSession",
    "agent",
    "current_session",
    "load_settings",
    "model_agent",
    "parse_callbacks",
]

_HOME = {
    "AgentDefinition": "orchestrator.agents.definition",
    "AsyncClient": "orchestrator.client.async_client",
    "Callback": "orchestrator.policy.callback_text",
    "Client": "orchestrator.client.client",
    "CurrentSession": "orchestrator.client.current",
    "Session": "orchestrator.ledger.model",
    "SessionState": "orchestrator.ledger.model",
    "Settings": "orchestrator.config.settings",
    "agent": "orchestrator.agents.definition",
    "current_session": "orchestrator.client.current",
    "load_settings": "orchestrator.config.settings",
    "model_agent": "orchestrator.agents.model_agents",
    "parse_callbacks": "orchestrator.policy.callback_text",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME.get(name, "orchestrator.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
