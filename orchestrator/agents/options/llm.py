"""The options of a model agent."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from orchestrator.agents.options.base import ExecutorOptions, FilePath, Reference

#: What to install for model agents.
INSTALL: Final = "pip install 'agent-orchestra[llm]'"
#: Characters that instructions may have; more than this is a document, which belongs into a tool.
MAX_INSTRUCTIONS_CHARS: Final = 200_000

Count = Annotated[int, Field(gt=0)]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ModelLimits(BaseModel):
    """Limits of one run of a model agent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Model requests in one run.
    requests: Count = 50
    #: Tool calls in one run; None: as many as the requests allow.
    tool_calls: Count | None = None
    #: Tokens, of requests and answers together, in one run; None: no limit.
    tokens: Count | None = None
    #: Tokens that the session's memory may have before it is shortened; estimated at four characters a token.
    memory_tokens: Count = 100_000
    #: How often an answer that does not fit the output type, or a wrong tool call, is handed back to the model.
    retries: Annotated[int, Field(ge=0)] = 2
    #: Bytes of each callback that the model sees; it reads on with a tool.
    callback_bytes: Count = 16_384
    #: Bytes of all callbacks of one run that the model sees; each has an equal part of them.
    callbacks_bytes: Count = 65_536


class ModelPrices(BaseModel):
    """Prices of a model, in US dollars for a million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: Price
    output: Price
    #: Of input tokens that a cache had, or took; by default as other input.
    cache_read: Price | None = None
    cache_write: Price | None = None


class ApprovalTerms(BaseModel):
    """Time limit of a tool call's approval, and the decision when it has passed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Seconds; None: the setting `approval_time_limit_s`.
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    #: What counts when nobody has answered by then.
    default: Literal["deny", "approve"] = "deny"


class McpServer(BaseModel):
    """An MCP server whose tools the model may call: a program, or a URL."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: The name of its steps; stays the same when its address changes.
    id: Annotated[str, Field(pattern=r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")]
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = Field(default_factory=dict, repr=False)
    url: str = ""
    headers: Mapping[str, str] = Field(default_factory=dict, repr=False)
    #: Seconds that one call of a tool may take.
    timeout_s: Annotated[float, Field(gt=0)] = 300
    #: Seconds that the server may take until it listens.
    start_timeout_s: Annotated[float, Field(gt=0)] = 30

    @model_validator(mode="after")
    def _one_address(self) -> McpServer:
        if bool(self.command) == bool(self.url):
            raise ValueError(f"MCP server {self.id!r} needs either command or url")
        return self


def _server_address(url: str) -> str:
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError("give the address of a server, such as http://127.0.0.1:8080/v1")
    return url


class LlmOptions(ExecutorOptions):
    """A model with instructions, tools and an output type; or a ``pydantic_ai.Agent`` that is used as it is."""

    #: A failed model request is tried again by these attempts of its run; what was paid before is not paid again.
    defaults: ClassVar[Mapping[str, Any]] = {"attempts": 5}

    #: The model as `provider:name`, or a model object; by default the one that the settings give the agent's tier.
    model: Any = ""
    #: The address of a server of one's own that serves `model`, in the format of the model's provider. It gets no key but
    #: the one of `key_env`.
    base_url: Annotated[str, AfterValidator(_server_address), Field(repr=False)] = ""
    #: The environment variable with the key for that server, if it wants one.
    key_env: str = ""
    #: Tokens of a conversation that `model` can hold, the answer included. Half of them are for the session's memory, and no
    #: call reserves more. By default the model is taken at its limits.
    context: Annotated[int, Field(ge=256)] | None = None
    #: What `model` costs, where the price list does not know it, or knows better; 0 for one that costs nothing.
    prices: ModelPrices | None = None
    #: Whether its answers come in pieces, to be shown while it writes. `false` for a server that does that badly.
    stream: bool = True
    #: Tried in this order when the model before is away or overloaded.
    fallbacks: tuple[str, ...] = ()
    instructions: Annotated[str, Field(max_length=MAX_INSTRUCTIONS_CHARS)] = ""
    instructions_file: FilePath | None = None
    #: Functions the model may call; the first parameter of one may be the context, annotated with `Context`.
    tools: tuple[Reference, ...] = ()
    mcp: tuple[McpServer, ...] = ()
    #: Tools whose calls a person approves first, by name; `*` stands for any characters.
    approve: tuple[str, ...] = ()
    #: For these, and for tools that ask for approval themselves.
    approval: ApprovalTerms = ApprovalTerms()
    #: What the answer must be: a pydantic model, or a JSON Schema as a table. By default any text.
    output: Reference = None
    #: How the model is made to give that form: `tool`, as the argument of a tool; `native`, by the provider's structured
    #: outputs, which a server of one's own turns into a grammar; `prompted`, by instructions alone.
    output_mode: Literal["tool", "native", "prompted"] = "tool"
    limits: ModelLimits = ModelLimits()
    #: Settings of the model, such as `temperature` and `max_tokens`.
    settings: Mapping[str, Any] = Field(default_factory=dict)
    #: Tools that make a tree, by name; by default those that fit the role.
    tree_tools: tuple[str, ...] | None = None
    #: When a session that has answered and has children at work is resumed.
    resume: Literal["any", "all"] = "all"
    #: Whether the model is told the protocol after its own instructions: its role and its tools. `compact` is a few lines
    #: for a small context.
    protocol: bool | Literal["compact"] = True
    #: In whose role callbacks come that no tool call waits for.
    callback_role: Literal["user", "system"] = "user"
    #: Shortens the messages that are kept; called with a list of messages, returns one.
    shorten: Reference = None
    #: A ``pydantic_ai.Agent``, used as it is.
    agent: Reference = None
    #: Makes the dependencies of that agent's runs; called with the context. By default the context itself.
    deps: Reference = None

    @model_validator(mode="before")
    @classmethod
    def _installed(cls, value: Any) -> Any:
        if importlib.util.find_spec("pydantic_ai") is None:
            raise ValueError(f"model agents need pydantic-ai: {INSTALL}")
        return value

    @model_validator(mode="after")
    def _server_fits(self) -> LlmOptions:
        # Said here, where the error does not repeat the value.
        if urlsplit(self.base_url).username is not None:
            raise ValueError("base_url: leave user and password out; key_env names the variable with the key")
        if self.key_env and not self.base_url:
            raise ValueError("key_env is for the server of base_url; a provider has its own variable")
        if self.base_url and not isinstance(self.model, str):
            raise ValueError("a model object has its own address; leave base_url out")
        if self.base_url and not self.model:
            raise ValueError('base_url needs the model that the server has: model = "openai-chat:NAME"')
        return self

    @model_validator(mode="after")
    def _fit_together(self) -> LlmOptions:
        if self.instructions and self.instructions_file:
            raise ValueError("give instructions or instructions_file, not both")
        if self.instructions_file is not None:
            text = _read(self.instructions_file)
            if len(text) > MAX_INSTRUCTIONS_CHARS:
                raise ValueError(
                    f"{self.instructions_file} has {len(text)} characters; instructions have at most "
                    f"{MAX_INSTRUCTIONS_CHARS}, give the rest through a tool"
                )
        if self.output_mode != "tool" and self.output in (None, str):
            raise ValueError(f"output_mode = {self.output_mode!r} needs output, the form that is asked for")
        if self.agent is not None:
            own = {
                "model",
                "base_url",
                "fallbacks",
                "instructions",
                "instructions_file",
                "tools",
                "mcp",
                "output",
                "output_mode",
                "settings",
            }
            both = sorted(own & self.model_fields_set)
            if both:
                raise ValueError(
                    f"an agent that is given as it is has its own {both[0]}; leave {both[0]} out"
                )
        for tool in self.tools:
            if not callable(tool):
                raise ValueError(f"tools are functions, not {tool!r}")  # noqa: TRY004
        return self

    @property
    def memory_tokens(self) -> int:
        """Tokens that the session's memory may have: what its limits say, and half of its model's context at most."""
        most = self.limits.memory_tokens
        return most if self.context is None else min(most, self.context // 2)

    @property
    def all_instructions(self) -> str:
        """The instructions, wherever they are."""
        return _read(self.instructions_file) if self.instructions_file is not None else self.instructions


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from None
