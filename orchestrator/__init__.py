"""Trees of agents on Celery and Redis that never lose, double or forge a wake-up.

The names below are the public surface; everything else may change. Each is imported when it is first used,
so that an agents file and `celery …` stay quick to load.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.agents import AgentDefinition, agent
    from orchestrator.async_client import AsyncClient
    from orchestrator.client import Client
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
        UnknownAgent,
        UnknownSession,
    )
    from orchestrator.ledger.model import Session, SessionState
    from orchestrator.policy.callback_text import Callback, parse_callbacks
    from orchestrator.settings import Settings, load_settings

__all__ = [
    "AgentDefinition",
    "AgentsFileError",
    "AsyncClient",
    "Callback",
    "Client",
    "ConfigurationError",
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
    "UnknownAgent",
    "UnknownSession",
    "agent",
    "load_settings",
    "parse_callbacks",
]

_HOME = {
    "AgentDefinition": "orchestrator.agents",
    "AsyncClient": "orchestrator.async_client",
    "Callback": "orchestrator.policy.callback_text",
    "Client": "orchestrator.client",
    "Session": "orchestrator.ledger.model",
    "SessionState": "orchestrator.ledger.model",
    "Settings": "orchestrator.settings",
    "agent": "orchestrator.agents",
    "load_settings": "orchestrator.settings",
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
