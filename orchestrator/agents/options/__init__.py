"""The options of each executor: what an agent's table, or the call that defines it, says beside the agent's own settings.

An unknown key or a bad value is an error that names the agent and the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import ValidationError, field_validator

from orchestrator.agents.options.base import ExecutorOptions, Reference, Surroundings
from orchestrator.agents.options.command import CommandOptions
from orchestrator.agents.options.llm import LlmOptions
from orchestrator.config.settings import did_you_mean
from orchestrator.errors import AgentSettingError, ConfigurationError

__all__ = [
    "EXECUTORS",
    "CommandOptions",
    "ExecutorOptions",
    "LlmOptions",
    "PythonOptions",
    "Surroundings",
    "check_options",
]


class PythonOptions(ExecutorOptions):
    """`function` is called with the context."""

    #: ``module:function``, or the function itself.
    function: Reference

    @field_validator("function")
    @classmethod
    def _check(cls, value: object) -> object:
        if not callable(value):
            raise ValueError('the python executor needs function = "module:function"')  # noqa: TRY004
        return value


#: Fields of a record that their author writes under another name.
_WRITTEN: Final = {"escalates_to": "escalation"}
#: What is wrong with a value, in the words of its author, by the type of the error.
_REASONS: Final = {"tuple_type": "input should be a list"}


@dataclass(frozen=True, kw_only=True)
class ExecutorKind:
    """A row of the table of executors: the properties of one, beside the module that runs its agents."""

    options: type[ExecutorOptions]
    #: The module with `execute` and `explain`, imported when the first of its agents runs; empty: workers run none.
    module: str = ""
    #: How its agents reach others in their own words: by the session's commands and MCP tools, by tools of their model, or
    #: not at all. It names the text of the prompt, `tools-<this>`.
    tools: Literal["command", "llm", ""] = ""
    #: Whether its agents may keep a conversation outside of the ledger, which no fork can take along.
    keeps_conversation: bool = False


#: What can run an agent, by name; `foreign` is a program that reads its work from the streams itself.
EXECUTORS: Final[Mapping[str, ExecutorKind]] = {
    "command": ExecutorKind(
        options=CommandOptions,
        module="orchestrator.worker.executors.command",
        tools="command",
        keeps_conversation=True,
    ),
    "foreign": ExecutorKind(options=ExecutorOptions),
    "llm": ExecutorKind(options=LlmOptions, module="orchestrator.worker.executors.llm", tools="llm"),
    "python": ExecutorKind(options=PythonOptions, module="orchestrator.worker.executors.python"),
}

#: Settings whose values may be secret.
_SECRETS: Final = frozenset({"env", "headers"})
#: Characters of a wrong value that an error repeats.
_SHOWN_CHARS: Final = 100


def check_options(
    agent: str,
    executor: str,
    table: Mapping[str, Any],
    *,
    surroundings: Surroundings | None = None,
    others: tuple[str, ...] = (),
) -> ExecutorOptions:
    """Return the options of an agent, checked by the model of its executor.

    Args:
        agent: the agent's name, for errors.
        executor: the name of the executor.
        table: the options as they were written.
        surroundings: where the file stands that names files and functions, and how to import these.
        others: the agent's own settings, for the hint after a misspelt key.

    Raises:
        AgentSettingError: there is no such executor or key, or a value is not allowed.
    """
    if executor not in EXECUTORS:
        raise AgentSettingError(
            agent, "executor", f"there is no executor {executor!r} (there are: {', '.join(EXECUTORS)})"
        )
    model = EXECUTORS[executor].options
    unknown = sorted(set(table) - set(model.model_fields))
    if unknown:
        hint = did_you_mean(unknown[0], (*others, *model.model_fields))
        raise AgentSettingError(agent, unknown[0], f"there is no setting {unknown[0]!r}{hint}")
    try:
        return model.model_validate(dict(table), context=surroundings)
    except ValidationError as error:
        raise setting_error(agent, error, needed_by=f"the {executor} executor") from None


def setting_error(agent: str, error: ValidationError, *, needed_by: str = "an agent") -> ConfigurationError:
    """Return an error about the first of an agent's settings that a model refused."""
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"]]
    if not place:
        return ConfigurationError(f"agent {agent!r}: {str(first['msg']).removeprefix('Value error, ')}")
    place[0] = _WRITTEN.get(place[0], place[0])
    name = ".".join(place)
    if first["type"] == "missing":
        return AgentSettingError(agent, name, f"{needed_by} needs the setting {name!r}")
    if first["type"] == "extra_forbidden":
        return AgentSettingError(agent, name, f"there is no setting {name!r}")
    reason = _REASONS.get(first["type"]) or str(first["msg"]).removeprefix("Value error, ")
    shown = "" if _SECRETS.intersection(place) else _shown(first["input"])
    return AgentSettingError(agent, name, f"{name}{shown}: {reason[0].lower()}{reason[1:]}")


def _shown(value: Any) -> str:
    """Return a value in an error: shortened, and not what others are within, such as the key of a server."""
    if isinstance(value, Mapping):
        return ""
    text = repr(value)
    return f" = {text if len(text) <= _SHOWN_CHARS else f'{text[:_SHOWN_CHARS]}…'}"
