"""The prompt texts that teach an agent the protocol: its role, its tools, the tags and the forms of answers.

The texts are files beside this module. A file of the same name in the folder of the setting `prompts` takes its place.
``$name`` stands for a value, ``$$`` for a dollar sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options import EXECUTORS
from orchestrator.errors import ConfigurationError
from orchestrator.policy.callback import Callback
from orchestrator.policy.callback_text import render_callbacks
from orchestrator.policy.response_tag import ANSWER_NOTE, RESPONSE

#: With an ellipsis, so that a model that repeats it has written no plan.
_PLAN_EXAMPLE: Final = """[
  {{"role": "developer", "task": "Write the module", "sequence": 1, "caller": "{agent}"}},
  {{"role": "tester", "task": "Test the module", "sequence": 2, "caller": "{agent}"}},
  …
]"""
_CALLBACK_EXAMPLE: Final = Callback(
    id="cb_01234567890123456789abcdef",
    session="ses_01234567890123456789abcdef",
    agent="developer",
    status="completed",
    title="Write the module",
    text="The module is written.",
)


def render_prompt(
    definition: AgentDefinition,
    *,
    tools: Mapping[str, str],
    sub_session: bool,
    compact: bool = False,
    folder: Path | None = None,
) -> str:
    """Return the protocol as an agent reads it, by its settings.

    Args:
        definition: the agent.
        tools: the tools that it has for other agents, each with what it does.
        sub_session: whether another agent gave it its task, and takes its answer.
        compact: a few lines, for a small context; the model finds its tools in their definitions.
        folder: own texts; by default the shipped ones.

    Raises:
        ConfigurationError: an own text cannot be read, or names a value that there is not.
    """
    record, of_tools = definition.record, EXECUTORS[definition.record.executor].tools
    values = {
        "agent": record.name,
        "role": record.role,
        "response_tag": RESPONSE,
        "plan_example": _PLAN_EXAMPLE.format(agent=record.name),
        "callback_example": _callback_example(),
        "tools": _list(tools, of_commands=of_tools == "command"),
    }
    plan = ["plan"] if record.answer == "plan" else []
    if compact:
        names = ["compact", *plan]
    else:
        role = "specialist" if record.role == "specialist" else "coordinator"
        names = [role, *plan, "callbacks"]
        if tools and of_tools:
            names.append(f"tools-{of_tools}")
        if sub_session:
            names.append("sub-session")
    texts = [_filled(name, values, folder) for name in names]
    return "\n\n".join([*texts, ANSWER_NOTE] if compact and sub_session else texts)


def _callback_example() -> str:
    """Return a callback as an agent gets it, without the instruction that follows it."""
    text, close, _ = render_callbacks([_CALLBACK_EXAMPLE]).rpartition("</agent-callback>")
    return text + close


def _list(tools: Mapping[str, str], *, of_commands: bool) -> str:
    if of_commands:
        return ", ".join(f"`{name}`" for name in tools)
    return "\n".join(f"- `{name}`: {does}" for name, does in tools.items())


def _filled(name: str, values: Mapping[str, str], folder: Path | None) -> str:
    text, where = _text(name, folder)
    try:
        return Template(text).substitute(values).strip()
    except KeyError as error:
        known = ", ".join(f"${value}" for value in values)
        raise ConfigurationError(
            f"{where}: there is no value ${error.args[0]} (there are: {known})"
        ) from None
    except ValueError as error:
        raise ConfigurationError(f"{where}: {error}; write $$ for a dollar sign") from None


def _text(name: str, folder: Path | None) -> tuple[str, str]:
    """Return a text, and where it is from."""
    own = None if folder is None else folder / f"{name}.md"
    if own is not None and own.is_file():
        try:
            return own.read_text(encoding="utf-8"), str(own)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{own}: {error}") from error
    return (files("orchestrator.agents") / "prompt_texts" / f"{name}.md").read_text(
        encoding="utf-8"
    ), f"{name}.md"
