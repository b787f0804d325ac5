"""The `pydantic_ai.Agent` and its models behind a definition: handed over by the author, or made of the definition's options."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast, get_args

import pydantic_core
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry, NativeOutput, PromptedOutput, StructuredDict
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import KnownModelName, Model, infer_model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options import LlmOptions
from orchestrator.agents.options.llm import McpServer
from orchestrator.agents.registry import AgentRecord
from orchestrator.config.settings import Settings, did_you_mean
from orchestrator.errors import ConfigurationError, ModelFailed
from orchestrator.worker.executors.llm.failures import one_line
from orchestrator.worker.executors.llm.functions import tool_of
from orchestrator.worker.executors.llm.metered import Metered

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


AnyAgent: TypeAlias = Agent[Any, Any]

#: Made once in each process; the definition is kept, so that its id is nobody else's.
_made: dict[int, tuple[AgentDefinition, AnyAgent]] = {}


def agent_of(definition: AgentDefinition, options: LlmOptions, settings: Settings) -> AnyAgent:
    """The agent that runs a definition.

    Raises:
        ModelFailed, ConfigurationError: it cannot be made, in one sentence.
    """
    known = _made.get(id(definition))
    if known is None or known[0] is not definition:
        agent = (
            _handed_over(definition, options)
            if options.agent is not None
            else _make(definition, options, settings)
        )
        _made[id(definition)] = known = (definition, agent)
    return known[1]


def check_model(definition: AgentDefinition, options: LlmOptions, settings: Settings) -> set[tuple[str, str]]:
    """Make the models of an agent and forget them: a client belongs to the process that asks.

    Returns provider and name of each, as limits have them; none of an agent that is handed over without a model.

    Raises:
        ConfigurationError: one cannot be asked.
    """
    if options.agent is None:
        model: Model | None = model_of(definition.record, options, settings)
    else:
        handed_over = getattr(options.agent, "model", None)
        model = None if handed_over is None else infer(definition.name, handed_over)
    models = model.models if isinstance(model, FallbackModel) else () if model is None else (model,)
    return {(one.system, one.model_name) for one in models}


def _handed_over(definition: AgentDefinition, options: LlmOptions) -> AnyAgent:
    if not isinstance(options.agent, Agent):
        raise ConfigurationError(
            f"agent {definition.name!r}: agent = {options.agent!r} is no pydantic_ai.Agent; hand one over"
        )
    model = options.agent.model
    if model is not None and not isinstance(model, Metered):
        options.agent.model = Metered(infer(definition.name, model), options=options)
    if options.agent.name is None:
        options.agent.name = definition.name
    return options.agent


def _make(definition: AgentDefinition, options: LlmOptions, settings: Settings) -> AnyAgent:
    toolsets: list[AbstractToolset[Any]] = [_server(definition.name, server) for server in options.mcp]
    if options.tools:
        tools = [tool_of(function, max_retries=options.limits.retries) for function in options.tools]
        toolsets.append(FunctionToolset(tools, id="tools"))
    agent: AnyAgent = Agent(
        model_of(definition.record, options, settings),
        name=definition.name,
        instructions=options.all_instructions or None,
        output_type=[_output_type(options), DeferredToolRequests],
        retries=options.limits.retries,
        model_settings=cast(ModelSettings, dict(options.settings)),
        toolsets=toolsets,
    )
    if isinstance(options.output, dict):
        _check_by_schema(agent, options.output)
    return agent


def _output_type(options: LlmOptions) -> Any:
    output = options.output
    if output is None:
        return str
    form = StructuredDict(output) if isinstance(output, dict) else output
    match options.output_mode:
        case "tool":
            return form
        case "native":
            return NativeOutput(form)
        case "prompted":
            return PromptedOutput(form)


def _check_by_schema(agent: AnyAgent, schema: dict[str, Any]) -> None:
    """Hand an answer that does not fit the JSON Schema back to the model."""
    import jsonschema

    validator = jsonschema.validators.validator_for(schema)(schema)

    @agent.output_validator
    def check(value: Any) -> Any:
        if not isinstance(value, DeferredToolRequests):
            error = jsonschema.exceptions.best_match(validator.iter_errors(value))
            if error is not None:
                raise ModelRetry(f"{error.json_path}: {error.message}")
        return value


def _server(agent: str, server: McpServer) -> AbstractToolset[Any]:
    try:
        from fastmcp.client.transports import StdioTransport, StreamableHttpTransport
        from pydantic_ai.mcp import MCPToolset
    except ImportError:
        raise ModelFailed(
            agent, "MCP servers need their client: pip install 'agent-orchestra[llm-mcp]'"
        ) from None
    if server.command:
        env = {name: os.path.expandvars(value) for name, value in server.env.items()}
        transport: Any = StdioTransport(server.command, list(server.args), env=env or None)
    else:
        headers = {name: os.path.expandvars(value) for name, value in server.headers.items()}
        transport = StreamableHttpTransport(server.url, headers=headers or None)
    toolset: AbstractToolset[Any] = MCPToolset(
        transport,
        id=server.id,
        tool_error_behavior="failed",  # the model reads it, as what a function of `tools` raises
        init_timeout=server.start_timeout_s,
        read_timeout=server.timeout_s,
    )
    return toolset


def answers_in_text(options: LlmOptions) -> bool:
    """Return True if an agent answers in text, and not in values of a type."""
    if options.agent is None:
        return options.output in (None, str)
    types = set(_types(getattr(options.agent, "output_type", None)))
    return types - {DeferredToolRequests} == {str}


def _types(output: Any) -> list[Any]:
    return list(output) if isinstance(output, list | tuple) else [output]


def output_type_of_runs(agent: AnyAgent) -> Any:
    """Return the output type of an agent's runs, deferred tool calls included; None if its own type includes them."""
    types = _types(agent.output_type)
    return None if DeferredToolRequests in types else [*types, DeferredToolRequests]


def as_text(agent: str, output: Any) -> str:
    """An answer as the text that the session ends with: text as it is, everything else as JSON.

    Raises:
        ModelFailed: it has no form as JSON.
    """
    if isinstance(output, str):
        return output
    if isinstance(output, BaseModel):
        return output.model_dump_json()
    try:
        return json.dumps(pydantic_core.to_jsonable_python(output), ensure_ascii=False)
    except pydantic_core.PydanticSerializationError as error:
        raise ModelFailed(agent, f"its answer has no form as JSON: {error}") from None
