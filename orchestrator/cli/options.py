"""Options that find a stack, choose sessions and print results, shared by the sub-commands.

Conventions: results go to standard output, everything else to standard error; with ``--json`` standard
output holds one JSON document and nothing else; exit codes are those of :mod:`orchestrator.cli.exit_codes`.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from orchestrator.cli.names import complete_agents, look_up, session_option
from orchestrator.cli.output import say

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings
    from orchestrator.operations.table import Operation


T = TypeVar("T")

Command = TypeVar("Command", bound=Callable[..., Any])

data_option = click.option(
    "--data",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Data folder. Default: ORCHESTRA_DATA, else ./.orchestra.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Seconds to wait at most. Default: no limit.",
)


def combined(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator; the help lists them in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


#: Which agents a worker has, and which of them it serves.
agents_options = combined(
    click.option(
        "--agents",
        multiple=True,
        metavar="MODULE_OR_FILE",
        help="Module or file (.py, .toml) that defines agents; may be given several times.",
    ),
    click.option(
        "--serve",
        multiple=True,
        metavar="AGENT|tag:TAG",
        help="Serve only these of the agents; may be given several times. Default: ORCHESTRA_SERVE, else all.",
    ),
)


def stack_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add ``--redis-url`` and ``--data``; the command gets ``settings`` built from them and the environment.

    Session arguments become whole ids on the way.
    """

    @click.option(
        "--redis-url",
        metavar="URL",
        help="Redis or Valkey of the ledger. Default: ORCHESTRA_REDIS_URL, else the stack on the data folder.",
    )
    @data_option
    @functools.wraps(command)
    def wrapper(*args: Any, redis_url: str | None, data: Path | None, **kwargs: Any) -> T:
        settings = settings_of(redis_url=redis_url, data=data)
        return command(*args, settings=settings, **look_up(settings, kwargs))

    return wrapper


def settings_of(**options: Any) -> Settings:
    """Return the settings of a command; unknown variables in the environment are named on standard error."""
    from orchestrator.config.settings import load_settings, unknown_variables

    settings = load_settings(**options)
    for sentence in unknown_variables():
        say(sentence, err=True)
    return settings


def _time(_context: click.Context, _parameter: click.Parameter, value: str | None) -> int | None:
    """Return the milliseconds since the epoch of a time, or of so long ago."""
    from orchestrator.errors import InputError
    from orchestrator.policy.moments import parse_past

    try:
        return None if value is None else parse_past(value, now_ms=time.time_ns() // 1_000_000)
    except InputError as error:
        raise click.BadParameter(str(error)) from None


def time_option(name: str, *, help: str, required: bool = False) -> Callable[[Command], Command]:
    """Return an option that takes a time, or how long ago it was; ``--since`` is the parameter ``since_ms``."""
    return click.option(
        name,
        f"{name.strip('-').replace('-', '_')}_ms",
        metavar="TIME",
        callback=_time,
        required=required,
        help=help,
    )


#: The command gets ``since_ms`` and ``until_ms``.
period_options = combined(
    time_option(
        "--since", help="Not before: how long ago (90s, 15m, 2h, 7d) or a time (2026-01-31T08:00:00Z)."
    ),
    time_option("--until", help="Not after: the same."),
)


def wait_options(help: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add ``--wait`` and ``--timeout``; the command gets ``wait`` and ``timeout_s``."""

    def add(command: Callable[..., T]) -> Callable[..., T]:
        @click.option("--wait", is_flag=True, help=help)
        @timeout_option
        @functools.wraps(command)
        def wrapper(*args: Any, wait: bool, timeout_s: float | None, **kwargs: Any) -> T:
            if timeout_s is not None and not wait:
                # It would seem to limit the work.
                raise click.UsageError("--timeout says how long to wait: it needs --wait")
            return command(*args, wait=wait, timeout_s=timeout_s, **kwargs)

        return wrapper

    return add


def text_of(argument: str) -> str:
    """Return the text of an argument; ``-`` reads standard input.

    Raises:
        InputError: standard input is no text.
    """
    if argument != "-":
        return argument
    octets = sys.stdin.buffer.read()
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        from orchestrator.errors import InputError

        raise InputError(f"standard input is not text in UTF-8 (byte {error.start}); convert it") from error


def known_type(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Return a message type as it was given.

    Raises:
        click.BadParameter: there is no such type; nothing would be found, as if all were well.
    """
    if value is not None:
        from orchestrator.envelope.message_types import MESSAGE_TYPES

        if value not in MESSAGE_TYPES:
            raise click.BadParameter(
                f"{value!r} is not a message type; choose from {', '.join(MESSAGE_TYPES)}"
            )
    return value


class SubCommands(click.Group):
    """A group that says which of its commands was probably meant, and where those with an old name are now.

    Its help says of each command what its first sentence says, to its end.
    """

    #: The old name of a command → where it is now, from `orchestra` on.
    renamed: Mapping[str, str] = {}

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if path := self.renamed.get(name):
            say(f"note: `orchestra {name}` is `orchestra {path}` now", err=True)
            return ctx.find_root().command.resolve_command(ctx, [*path.split(), *args[1:]])  # type: ignore[attr-defined, no-any-return]
        if not (ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name)):
            from orchestrator.config.settings import did_you_mean

            ctx.fail(f"there is no command {name!r}{did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(limit=1000)) for name, command in commands if command]
            )


class VerbCommand(click.Command):
    """A command that takes the fields of a request beside its own parameters; ``verb`` names the row of the table.

    Fields that must be given are its arguments; the last of them may be ``-``, which reads standard input.

    The table is loaded when the command runs or shows its help: what stands in the same module must not wait for it.
    """

    def __init__(self, *args: Any, verb: str, but: Collection[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._verb, self._but = verb, frozenset(but)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        return [*self._arguments, *own[:-1], *self._options, *own[-1:]]  # the option --help comes last

    @cached_property
    def _operation(self) -> Operation:
        from orchestrator.operations.table import OPERATIONS

        return OPERATIONS[self._verb]

    @cached_property
    def _arguments(self) -> list[click.Parameter]:
        own, names = {one.name for one in self.params}, self._operation.required
        return [
            click.Argument([name], callback=_text if name == names[-1] else None)
            for name in names
            if name not in own
        ]

    @cached_property
    def _options(self) -> list[click.Parameter]:
        operation = self._operation
        return [
            _option(name, schema)
            for name, schema in operation.schema["properties"].items()
            if name not in operation.required and name not in self._but
        ]


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that a command's options give; options that were not given are left out."""
    return {name: value for name, value in fields.items() if value is not None and value != ()}


def _option(name: str, schema: Mapping[str, Any]) -> click.Option:
    word, help = name.removesuffix("_s").replace("_", "-"), schema["description"].replace("`", "")
    kind: Any = str
    match schema:
        case {"enum": choices}:
            kind = click.Choice(choices)
        case {"type": "number"}:
            least = schema.get("exclusiveMinimum", schema.get("minimum"))
            kind = click.FloatRange(min=least, min_open="exclusiveMinimum" in schema)
            return click.Option([f"--{word}", name], type=kind, metavar="S", help=help)
        case {"type": "integer"}:
            kind = int
        case {"type": "boolean"}:
            return click.Option([f"--{word}/--no-{word}", name], default=None, help=help)
        case {"type": "array"}:
            return click.Option([f"--{word.removesuffix('s')}", name], multiple=True, help=help)
        case {"type": "object", "additionalProperties": {"type": "string"}}:
            one = f"--{word.removesuffix('s')}"
            return click.Option([one, name], multiple=True, metavar="NAME=VALUE", callback=_pairs, help=help)
        case {"type": "object"}:
            return click.Option([f"--{word}", name], metavar="JSON", callback=_object, help=help)
    return click.Option([f"--{word}", name], type=kind, help=help)


def _text(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Return the text of an argument; a shell that completes has no standard input for it."""
    return value if context.resilient_parsing else text_of(value)


def _pairs(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> Any:
    """Return a mapping of pairs NAME=VALUE; None without any."""
    if wrong := [value for value in values if "=" not in value]:
        raise click.BadParameter(f"{wrong[0]!r} is not NAME=VALUE")
    return dict(value.split("=", 1) for value in values) or None


def _object(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Any:
    """Return a JSON object."""
    if value is None:
        return None
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"it is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise click.BadParameter("it must be a JSON object")
    return parsed


_Result = TypeVar("_Result")


#: States in which a session may be.
_STATES = ("scheduled", "pending", "running", "idle", "finished", "failed", "stopped", "deleted", "damaged")


def filter_options(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """Add ``--state``, ``--agent``, times and costs; the command gets the filter as ``only``."""

    @click.option(
        "--state",
        "states",
        type=click.Choice(_STATES),
        multiple=True,
        help="Only those in this state; may be repeated. `scheduled`: those that begin later.",
    )
    @click.option(
        "--agent",
        "agents",
        metavar="AGENT",
        multiple=True,
        shell_complete=complete_agents,
        help="Only those of this agent; may be repeated.",
    )
    @click.option(
        "--since", metavar="TIME", help="Not before: how long ago (90s, 15m, 2h, 7d) or a time in ISO 8601."
    )
    @click.option("--until", metavar="TIME", help="Not after: the same.")
    @click.option(
        "--cost-from", metavar="USD", help="Only those whose own calls of models cost that much or more."
    )
    @click.option("--cost-to", metavar="USD", help="That much or less.")
    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> _Result:
        from orchestrator.ledger.model import SessionFilter

        names = ("states", "agents", "since", "until", "cost_from", "cost_to")
        only = SessionFilter.of({name: kwargs.pop(name) for name in names}, time.time_ns() // 1_000_000)
        return command(*args, only=only, **kwargs)

    return wrapper


#: What a message can have come to.
OUTCOMES = ("dead", "success", "partial-success", "failed", "completed", "in-progress", "blocked")

#: The conditions of a search in the audit trail, under the names that its reader takes.
search_options = combined(
    click.option("--type", "message_type", callback=known_type, help="Message type."),
    click.option("--sender", help="Name of the sender."),
    click.option("--recipient", help="Name of the recipient."),
    click.option("--priority", help="Priority of the stream."),
    click.option("--correlation", help="Correlation-id of a conversation."),
    session_option("--task", "--session", "task_id", help="Task-id or session id."),
    click.option("--message", "message_id", help="Message-id."),
    click.option("--attempt", type=click.IntRange(1), help="Number of the attempt to deliver it."),
    click.option("--rule", help="Rule by which it became a dead letter."),
    click.option(
        "--outcome",
        type=click.Choice(OUTCOMES),
        help="dead: it became a dead letter; else how the task stands, by a message that did not.",
    ),
    period_options,
    click.option("--dead", is_flag=True, help="Only messages that became dead letters."),
)
