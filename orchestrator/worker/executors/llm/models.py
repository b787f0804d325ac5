"""The model of an agent: by its name, or by its tier and the settings."""

from __future__ import annotations

from typing import Any, Final

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.providers import Provider, infer_provider

from orchestrator.agents.options import LlmOptions
from orchestrator.agents.registry import AgentRecord
from orchestrator.config.settings import Settings
from orchestrator.errors import ModelFailed
from orchestrator.worker.executors.llm.metered import Metered
from orchestrator.worker.executors.llm.secrets import one_line

#: The extras that bring a provider's client.
_EXTRAS: Final = {"anthropic": "anthropic", "openai": "openai", "openai-chat": "openai"}


def model_of(record: AgentRecord, options: LlmOptions, settings: Settings) -> Model:
    """The model that runs an agent, its fallbacks included.

    Raises:
        ModelFailed: there is no such model or provider, its client is not installed, or its key is missing.
    """
    first = options.model or model_of_tier(record, settings)
    names = (first, *options.fallbacks)
    models = [
        Metered(_infer(record.name, name), stands_in=number < len(names))
        for number, name in enumerate(names, start=1)
    ]
    return models[0] if len(models) == 1 else FallbackModel(*models)


def model_of_tier(record: AgentRecord, settings: Settings) -> str:
    """The model that the settings give an agent's tier; one without a tier has the middle one."""
    return str(getattr(settings, f"model_{record.tier or 'sonnet'}"))


def _infer(agent: str, name: str | Model) -> Model:
    if isinstance(name, Model):
        return name
    try:
        return infer_model(name, provider_factory=_provider)
    except ImportError:
        provider = name.partition(":")[0]
        extra = _EXTRAS.get(provider)
        what = f"'agent-orchestra[{extra}]'" if extra else f"'pydantic-ai-slim[{provider}]'"
        raise ModelFailed(agent, f"the client of {provider!r} is not installed: pip install {what}") from None
    except (UserError, ValueError) as error:
        raise ModelFailed(agent, f"the model {name!r} cannot be used: {one_line(error)}") from None


def _provider(name: str) -> Provider[Any]:
    """A provider whose client does not try again by itself: a run that is refused waits in the ledger, not in a slot."""
    provider = infer_provider(name)
    if name in _EXTRAS:
        provider.client.max_retries = 0
    return provider
