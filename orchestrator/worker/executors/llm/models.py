"""The model of an agent: by its name, or by its tier and the settings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Final, get_args

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import KnownModelName, Model, infer_model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class

from orchestrator.agents.options import LlmOptions
from orchestrator.agents.registry import AgentRecord
from orchestrator.config.settings import Settings, did_you_mean
from orchestrator.errors import ConfigurationError
from orchestrator.worker.executors.llm.metered import Metered
from orchestrator.worker.executors.llm.secrets import one_line

#: What a client sends that wants a key, to a server that wants none.
_NO_KEY: Final = "no-key-needed"
#: Where a provider says which variable of the environment is missing.
_VARIABLE: Final = re.compile(r"[Ss]et the `([A-Z0-9_]+)`")
#: The extras that bring a provider's client.
_EXTRAS: Final = {"anthropic": "anthropic", "openai": "openai", "openai-chat": "openai"}


def model_of(record: AgentRecord, options: LlmOptions, settings: Settings) -> Model:
    """The model that runs an agent, its fallbacks included.

    Raises:
        ConfigurationError: there is no such provider, its client is not installed, or its key is missing.
    """
    first = options.model or model_of_tier(record, settings)
    names = (first, *options.fallbacks)
    own = _own_server(record.name, options) if options.base_url else infer_provider
    models = [
        Metered(
            infer(record.name, name, own if number == 1 else infer_provider),
            stands_in=number < len(names),
            options=options if number == 1 else None,
        )
        for number, name in enumerate(names, start=1)
    ]
    return models[0] if len(models) == 1 else FallbackModel(*models)


def model_of_tier(record: AgentRecord, settings: Settings) -> str:
    """The model that the settings give an agent's tier; one without a tier has the middle one."""
    return str(getattr(settings, f"model_{record.tier or 'sonnet'}"))


def infer(
    agent: str, name: str | Model, provider_of: Callable[[str], Provider[Any]] = infer_provider
) -> Model:
    """The model of that name.

    Raises:
        ConfigurationError: it cannot be asked.
    """
    if isinstance(name, Model) or name == "test":
        return infer_model(name)
    provider, _, model = name.partition(":")
    if not model:
        raise _unusable(agent, name, "write provider:name, such as anthropic:claude-sonnet-4-5")
    try:
        infer_provider_class(provider)
        return infer_model(name, provider_factory=provider_of)
    except ImportError:
        extra = _EXTRAS.get(provider)
        what = f"'agent-orchestra[{extra}]'" if extra else f"'pydantic-ai-slim[{provider}]'"
        raise _unusable(
            agent, name, f"the client of {provider!r} is not installed: pip install {what}"
        ) from None
    except UserError as error:
        missing = _VARIABLE.search(str(error))
        why = f"set {missing[1]} in the worker's environment" if missing else one_line(error)
        raise _unusable(agent, name, why) from None
    except ValueError:
        known = {known.partition(":")[0] for known in get_args(KnownModelName.__value__)}
        near = did_you_mean(provider, known)
        raise _unusable(agent, name, f"there is no provider {provider!r}{near}") from None


def _unusable(agent: str, model: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"agent {agent!r}: its model {model!r} cannot be asked: {why}")


def _own_server(agent: str, options: LlmOptions) -> Callable[[str], Provider[Any]]:
    """A provider at the address of the options. Its key is never one that the environment has for somebody else."""

    def provider_of(name: str) -> Provider[Any]:
        key = os.environ.get(options.key_env, "") if options.key_env else _NO_KEY
        if not key:
            raise ConfigurationError(
                f"agent {agent!r}: set {options.key_env}, the variable with its model's key"
            )
        make: Any = infer_provider_class(name)
        try:
            provider: Provider[Any] = make(base_url=options.base_url, api_key=key)
        except TypeError:
            raise ConfigurationError(
                f'agent {agent!r}: a model of {name!r} takes no base_url; write "openai-chat:NAME" for a server that speaks '
                "the format of OpenAI's chat completions"
            ) from None
        return provider

    return provider_of
