"""The options of an agent that is a command-line program, and the presets of the well-known ones.

A preset is a set of these options with the program's documented flags. Each option that an agent gives replaces the
preset's; `args` adds to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    model_validator,
)

from orchestrator.agents.options.base import ExecutorOptions, FilePath, Surroundings

_RESULT: Final = {"type": "result"}
_CLAUDE: Final = ("-p", "--output-format", "stream-json", "--verbose")

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    # Claude Code, print mode: one JSON object a line, the last one of type `result`.
    "claude": {
        "command": ("claude",),
        "start": _CLAUDE,
        "resume": (*_CLAUDE, "--resume", "{conversation}"),
        "prompt": "stdin",
        "output": "json-lines",
        "env": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "CLAUDE_CONFIG_DIR"),
        "read": {
            "answer": {"path": "result", "when": {**_RESULT, "is_error": False}},
            "error": {"path": "result", "when": {**_RESULT, "is_error": True}},
            "conversation": "session_id",
            "text": {"path": "message.content[].text", "when": {"type": "assistant"}},
            "tool": {"path": "message.content[].name", "when": {"type": "assistant"}},
            "cut_off": {
                "path": "message.stop_reason",
                "when": {"type": "assistant", "message.stop_reason": "max_tokens"},
            },
            "input_tokens": {
                "path": "usage.input_tokens",
                # What its provider's cache takes and gives is counted apart there.
                "plus": ("usage.cache_creation_input_tokens", "usage.cache_read_input_tokens"),
                "when": _RESULT,
            },
            "output_tokens": {"path": "usage.output_tokens", "when": _RESULT},
            "cost_usd": {"path": "total_cost_usd", "when": _RESULT},
        },
    },
    # Codex, `exec`: one JSON object a line; `-` reads the prompt from standard input.
    "codex": {
        "command": ("codex",),
        "start": ("exec", "--json", "{args}", "-"),
        "resume": ("exec", "--json", "{args}", "resume", "{conversation}", "-"),
        "prompt": "stdin",
        "output": "json-lines",
        "env": ("OPENAI_API_KEY", "OPENAI_BASE_URL", "CODEX_API_KEY", "CODEX_HOME"),
        "read": {
            "answer": {"path": "item.text", "when": {"type": "item.completed", "item.type": "agent_message"}},
            "error": {"path": "error.message", "when": {"type": "turn.failed"}},
            "conversation": {"path": "thread_id", "when": {"type": "thread.started"}},
            "text": {"path": "item.text", "when": {"type": "item.completed", "item.type": "agent_message"}},
            "tool": {
                "path": "item.command",
                "when": {"type": "item.started", "item.type": "command_execution"},
            },
            "input_tokens": {"path": "usage.input_tokens", "when": {"type": "turn.completed"}, "total": True},
            "output_tokens": {
                "path": "usage.output_tokens",
                "when": {"type": "turn.completed"},
                "total": True,
            },
        },
    },
    # Gemini CLI, headless: one JSON object a line; the answer comes in pieces.
    "gemini": {
        "command": ("gemini",),
        "start": ("--output-format", "stream-json"),
        "resume": ("--output-format", "stream-json", "--resume", "{conversation}"),
        "prompt": "stdin",
        "output": "json-lines",
        "env": (
            "GEMINI_API_KEY",
            "GOOGLE_API_KEY",
            "GOOGLE_CLOUD_PROJECT",
            "GOOGLE_APPLICATION_CREDENTIALS",
            "GOOGLE_GEMINI_BASE_URL",
            "GEMINI_CLI_TRUST_WORKSPACE",
        ),
        "read": {
            "answer": {"path": "content", "when": {"type": "message", "role": "assistant"}, "join": True},
            "error": {"path": "error.message", "when": {"type": "result", "status": "error"}},
            "conversation": {"path": "session_id", "when": {"type": "init"}},
            "text": {"path": "content", "when": {"type": "message", "role": "assistant"}},
            "tool": {"path": "tool_name", "when": {"type": "tool_use"}},
            "input_tokens": {"path": "stats.input_tokens", "when": _RESULT},
            "output_tokens": {"path": "stats.output_tokens", "when": _RESULT},
        },
    },
    # Any agent that speaks the Agent Client Protocol over standard input and output: `command` says which.
    "acp": {"output": "acp"},
}

MIB: Final = 1024 * 1024
#: What every program is given of the worker's environment.
PLAIN_ENVIRONMENT: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TMPDIR",
    "TZ",
    "USER",
    "LOGNAME",
    "SHELL",
)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _from_path(value: object) -> object:
    return {"path": value} if isinstance(value, str) else value


class Reading(BaseModel):
    """The place of a value in the JSON that a program prints."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Keys from the outside in, with dots between them; ``name[]`` is every entry of a list, ``[]`` every value.
    path: str
    #: Places of more numbers, which are added to the first one.
    plus: tuple[str, ...] = ()
    #: Paths and the values that they must have, or the line says nothing of this.
    when: Mapping[str, str | int | float | bool] = Field(default_factory=dict)
    #: Put together what all lines say, in their order, instead of taking the last.
    join: bool = False
    #: A number that the program adds up over all turns of its conversation: earlier turns are not counted again.
    total: bool = False


#: A path alone, or a table with its conditions.
JsonReading = Annotated[Reading, BeforeValidator(_from_path)]


class Readings(BaseModel):
    """Places of the values that are read from a program's JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    answer: JsonReading | None = None
    conversation: JsonReading | None = None
    error: JsonReading | None = None
    #: What it says and does on the way, for people who watch.
    text: JsonReading | None = None
    tool: JsonReading | None = None
    #: There is something at this place if a limit of tokens cut the answer off.
    cut_off: JsonReading | None = None
    #: Added up over all lines.
    input_tokens: JsonReading | None = None
    output_tokens: JsonReading | None = None
    cost_usd: JsonReading | None = None

    @property
    def totals(self) -> list[str]:
        """The numbers that the program adds up itself."""
        counted = {
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost_usd": self.cost_usd,
        }
        return [name for name, reading in counted.items() if reading is not None and reading.total]


class WorktreeOptions(BaseModel):
    """A git worktree and a branch of its own for each session."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: The repository; by default the agent's folder.
    repository: FilePath | None = None
    #: What each branch begins at.
    base: str = "HEAD"
    #: When the worktree is removed: once the parent has taken the result, or only by hand.
    keep: Literal["until-taken", "always"] = "until-taken"


class SandboxOptions(BaseModel):
    """Access of a program from inside its sandbox; everything else is hidden."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: All of the host's network, or none.
    network: bool = False
    #: Files and folders that it may read, beside the system's programs and libraries: secrets are listed here.
    read: tuple[FilePath, ...] = ()
    #: Files and folders that it may change, beside its working folder.
    write: tuple[FilePath, ...] = ()


def _from_folder(command: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
    """Return a command, with a relative program such as `./agent` taken from the folder of the file that names it."""
    if not command or "/" not in command[0] or not isinstance(info.context, Surroundings):
        return command
    return (str((info.context.folder / Path(command[0]).expanduser()).absolute()), *command[1:])


def _on(model: type[BaseModel]) -> BeforeValidator:
    """``true`` is the option with its defaults, ``false`` is none."""

    def read(value: object) -> object:
        if value is True:
            return model()
        return None if value is False else value

    return BeforeValidator(read)


class CommandOptions(ExecutorOptions):
    """A command-line agent: one process for each turn of its conversation, or one for a run with `output = "acp"`."""

    preset: Literal["claude", "codex", "gemini", "acp"] | None = None
    #: The program, with what always stands before its other arguments. No shell reads it.
    command: Annotated[tuple[str, ...], AfterValidator(_from_folder)] = Field(min_length=1)
    #: Arguments of the first turn. ``{prompt}``, ``{prompt_file}``, ``{conversation}``, ``{session}`` and ``{args}`` are
    #: filled in.
    start: tuple[str, ...] = ()
    #: Arguments of every later turn; empty: the program keeps no conversation, and is given the text of it so far.
    resume: tuple[str, ...] = ()
    #: Further arguments of every turn, a model for one; at ``{args}``, else at the end.
    args: tuple[str, ...] = ()
    #: How the prompt gets to the program.
    prompt: Literal["stdin", "argument", "file"] = "stdin"
    #: What the program prints: its answer, one JSON document, one JSON object a line, or the Agent Client Protocol.
    output: Literal["text", "json", "json-lines", "acp"] = "text"
    read: Readings = Field(default_factory=Readings)
    #: Where it runs: by default the folder of the file that defines the agent, or the worker's.
    folder: FilePath | None = None
    #: Variables of the worker's environment that it is given beside the plain ones; the list of its secrets, too.
    env: tuple[str, ...] = ()
    #: Variables with values of their own.
    set_env: Mapping[str, str] = Field(default_factory=dict)
    #: Bytes of its answer, or of a line, that are kept: of a text the end.
    max_output_bytes: Annotated[int, Field(ge=1024, le=64 * MIB)] = 4 * MIB
    #: Seconds without any output after which it counts as hung; unset: as long as the run may take.
    silence_limit_s: Annotated[float, Field(gt=0)] | None = None
    #: Seconds between being asked to stop and being killed.
    stop_grace_s: Annotated[float, Field(gt=0, le=600)] = 5
    #: Whether a tool of an `acp` agent may be used: the parent is asked (`ask`; of a root a person), a person is
    #: (`approve`), everything is allowed, or nothing.
    permissions: Literal["ask", "approve", "allow", "deny"] = "ask"
    #: Whether its first prompt begins with the protocol: its role, its tools, the tag of its answer.
    protocol: bool = True
    worktree: Annotated[WorktreeOptions | None, _on(WorktreeOptions)] = None
    sandbox: Annotated[SandboxOptions | None, _on(SandboxOptions)] = None

    @model_validator(mode="before")
    @classmethod
    def _begin_with_the_preset(cls, given: Any, info: ValidationInfo) -> Any:
        if not isinstance(given, dict):
            return given
        if isinstance(info.context, Surroundings):
            given = {"folder": str(info.context.folder.absolute()), **given}
        if given.get("preset") not in PRESETS:
            return given
        preset = PRESETS[given["preset"]]
        merged = {**preset, **given}
        if isinstance(given.get("read"), dict):
            merged["read"] = {**preset.get("read", {}), **given["read"]}
        merged["env"] = (*preset.get("env", ()), *given.get("env", ()))
        return merged

    @model_validator(mode="after")
    def _fits_together(self) -> CommandOptions:
        if self.output in ("json", "json-lines") and self.read.answer is None:
            raise ValueError(
                f'output = "{self.output}" needs read.answer, the place of the answer in the JSON'
            )
        named = any("{session}" in part for part in (*self.resume, *self.args))
        if self.resume and self.read.conversation is None and not named and self.output != "acp":
            raise ValueError(
                "resume needs read.conversation, the place of the conversation's id in the output, or {session} among "
                "its arguments, where the program takes a name for its conversation"
            )
        for name in (*self.env, *self.set_env):
            if not _ENV_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of an environment variable")
        return self
