"""Definitions of agents: a function of a context, and what the system must know of it.

    @agent("lead", role="coordinator", tier="opus")
    def lead(ctx):
        ...

The decorated function stays what it was. Its definition is kept beside it in the module that defines it,
so that there is no registry in this process: `orchestrator.agents.loader` collects what a module holds.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, get_args

from pydantic import ValidationError

from orchestrator.agents.options import ExecutorOptions, PythonOptions, check_options, setting_error
from orchestrator.agents.registry import SYSTEM_AGENTS, TAG_PATTERN, AgentRecord, Role, Tier
from orchestrator.agents.versions import version_of
from orchestrator.errors import AgentSettingError, ConfigurationError, InputError
from orchestrator.policy.budget import Budget
from orchestrator.policy.retry import Backoff
from orchestrator.policy.versions import VERSION_PATTERN, OnDeploy

F = TypeVar("F", bound=Callable[[Any], Any])

#: Where a module keeps the definitions that were made in it.
MODULE_ATTRIBUTE = "__orchestra_agents__"
#: Where a function keeps its definition.
FUNCTION_ATTRIBUTE = "__orchestra_agent__"

#: The queue that the bundled agents share. A worker without a user's agents never takes the runs of a user's `lead`.
BUNDLED_QUEUE = "orchestra.bundled"
StepPolicy = Literal["strict", "replace"]

#: What of an agent's record decides how it works.
_WORKS = ("role", "tier", "executor", "answer", "on_deploy")

_VERSION = re.compile(VERSION_PATTERN)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class AgentDefinition:
    """An agent as its author wrote it."""

    record: AgentRecord  #: what clients, routers and services know of it
    source: str  #: file and line of the definition
    options: ExecutorOptions  #: settings of its executor
    #: What becomes of a try that asks for other durable steps than an earlier one.
    steps: StepPolicy = "strict"
    #: What all its sessions may spend together.
    budget: Budget | None = None

    @property
    def name(self) -> str:
        """The agent's name, unique in the stack."""
        return self.record.name

    @property
    def function(self) -> Callable[[Any], Any] | None:
        """The function that the `python` executor calls; None for the other executors."""
        return self.options.function if isinstance(self.options, PythonOptions) else None


def agent(
    name: str,
    *,
    role: Role = "specialist",
    tier: Tier | None = None,
    queue: str | None = None,
    attempts: int = 1,
    backoff: Backoff = "exponential",
    backoff_s: float = 1,
    backoff_max_s: float = 300,
    time_limit_s: float | None = None,
    runs_at_once: int | None = None,
    escalation: str = "",
    may_send_to: Sequence[str] | None = None,
    accepts_from: Sequence[str] | None = None,
    tags: Sequence[str] = (),
    steps: StepPolicy = "strict",
    answer: Literal["text", "plan"] = "text",
    budget: Budget | Mapping[str, Any] | str | None = None,
    version: str | None = None,
    on_deploy: OnDeploy = "latest",
    encrypt: bool = False,
) -> Callable[[F], F]:
    """Make a function of a context an agent.

    Args:
        name: letters, digits, dots, dashes and underscores; what others delegate to.
        role: `specialist`, `coordinator` or `orchestrator`; it may delegate to equal or lower ranks.
        tier: `opus`, `sonnet` or `haiku`, for executors that choose a model by it.
        queue: the Celery queue of its runs; by default one of its own, so that workers with different
            agents can share a stack.
        attempts: how often a run may fail before its session fails.
        backoff: how the waits before further attempts grow: `exponential` or `linear`. Each is shortened at random,
            by up to a half.
        backoff_s: seconds of the first of these waits.
        backoff_max_s: seconds of the longest.
        time_limit_s: seconds that one run may take; by default the stack's own limit.
        runs_at_once: how many of its runs the stack executes at once, for example because a service behind it
            takes no more; by default as many as there are slots. `orchestra agents limit` changes it while the stack runs.
        escalation: the agent that its errors go to; by default its parent, then up the path.
        may_send_to: the agents it may send messages to, and no others; by default whomever the routing table allows.
            `tag:TAG` means every agent with that tag.
        accepts_from: the agents it takes messages from, and no others; `tag:TAG` as above. Neither list concerns the
            operator, nor reports, questions and replies, which go to the delegator or the asker.
        tags: words that it is found by: in lists of agents, by `orchestra agents --tag`, and by workers that serve
            the agents with a tag.
        steps: what becomes of a run that is tried again and asks for other durable steps than before: `strict`,
            it fails with an error that names them; `replace`, it goes on with new ones.
        answer: `plan`: the agent answers with a JSON array of assignments, and these are carried out.
        budget: what all sessions of this agent may spend together in a day, or in `per_s` seconds: some of `requests`,
            `tokens` and `usd`.
        version: the version of this definition, as its author names it; by default a digest of the definition.
        on_deploy: what becomes of a session that began with another version: `latest`, any worker goes on with it;
            `refuse`, it fails.
        encrypt: whether its messages are encrypted for their recipients, and sealed in the ledger. This includes what
            its sessions delegate.

    Raises:
        ConfigurationError: a value is not allowed, or the function does not take one argument.
    """
    settings: dict[str, Any] = {**locals()}

    def define(function: F) -> F:
        code = function.__code__ if inspect.isfunction(function) else None
        source = f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)
        try:
            inspect.signature(function).bind(None)
        except TypeError:
            raise ConfigurationError(
                f"agent {name!r}: its function must take one argument, the context"
            ) from None
        definition = define_agent(
            **settings,
            function=function,
            source=source,
            description=(inspect.getdoc(function) or "").partition("\n")[0],
        )
        function.__globals__.setdefault(MODULE_ATTRIBUTE, []).append(definition)
        setattr(function, FUNCTION_ATTRIBUTE, definition)
        return function

    return define


#: Settings of an agent that are its own, as its author writes them; the rest are its executor's.
FIELDS: Final = ("executor", "description", *tuple(inspect.signature(agent).parameters)[1:])


def check_name(name: str) -> None:
    """See that an agent may have this name.

    Raises:
        ConfigurationError: it may not.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"agent {name!r}: a name has 1 to 100 letters, digits, dots, dashes and underscores, "
            "and begins with a letter or digit"
        )


def check_tag(tag: str) -> None:
    """See that an agent may have this tag.

    Raises:
        ConfigurationError: it may not.
    """
    if not re.fullmatch(TAG_PATTERN, tag):
        raise ConfigurationError(
            f"tag {tag!r}: a tag has 1 to 50 letters, digits, dots, dashes and underscores, and begins with a letter or digit"
        )


def define_agent(
    name: str,
    *,
    source: str,
    function: Callable[[Any], Any] | None = None,
    options: ExecutorOptions | Mapping[str, Any] | None = None,
    queue: str | None = None,
    executor: str = "python",
    steps: StepPolicy = "strict",
    budget: Budget | Mapping[str, Any] | str | None = None,
    version: object = None,
    **fields: Any,
) -> AgentDefinition:
    """Define an agent of any executor, such as a command-line program; `agent` and `model_agent` define functions and models.

    Args:
        name: the agent's name.
        source: the file of the definition, and its line if you like: errors name it.
        function: what the `python` executor calls.
        options: settings of the executor.
        queue: the Celery queue of its runs; by default one of its own.
        executor: what runs the agent: `python`, `llm` or `command`.
        steps: what becomes of a try that asks for other durable steps than an earlier one.
        budget: what all its sessions may spend together.
        version: the version of the definition; by default a digest of it.
        fields: the other settings of an agent, such as `role` and `attempts`.

    Raises:
        ConfigurationError: names the agent, the value and what it may be.
    """
    check_name(name)
    if name in SYSTEM_AGENTS:
        raise ConfigurationError(f"agent {name!r}: the system itself uses this name; choose another")
    if not isinstance(options, ExecutorOptions):
        given = {} if function is None else {"function": function}
        options = check_options(name, executor, {**given, **(options or {})})
    try:
        checked = Budget.of(budget)
    except InputError as error:
        raise AgentSettingError(name, "budget", str(error)) from None
    if steps not in get_args(StepPolicy):
        allowed = ", ".join(map(repr, get_args(StepPolicy)))
        raise AgentSettingError(name, "steps", f"steps = {steps!r}: choose from {allowed}")
    if version is not None and (not isinstance(version, str) or not _VERSION.fullmatch(version)):
        raise AgentSettingError(
            name,
            "version",
            f"version = {version!r}: a version has 1 to 64 letters, digits, dots, dashes, underscores and plus signs, and "
            "begins with a letter or digit",
        )
    if "escalation" in fields:
        fields["escalates_to"] = fields.pop("escalation")
    try:
        record = AgentRecord(
            name=name,
            executor=executor,
            queue=queue or default_queue(name),
            **{**options.defaults, **fields},
        )
    except ValidationError as error:
        raise setting_error(name, error) from None
    named = (
        version
        if isinstance(version, str)
        else version_of(
            {**{field: getattr(record, field) for field in _WORKS}, "steps": steps, "options": options},
            source=source,
        )
    )
    return AgentDefinition(
        record=record.model_copy(update={"version": named}),
        source=source,
        options=options,
        steps=steps,
        budget=checked,
    )


def default_queue(name: str) -> str:
    """Return the default queue of an agent: only workers that serve this very agent read it."""
    return f"orchestra.{name}"
