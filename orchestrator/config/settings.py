"""Every knob of a stack, in one validated, frozen object.

A value comes from, first found wins: an override (command-line options), the environment
(``ORCHESTRA_`` + the name in capitals), the table ``[orchestra]`` of a TOML file (``ORCHESTRA_CONFIG``,
else ``orchestra.toml`` in the working directory), the default. An unknown name is refused in a file, and causes
a warning in the environment, which other programs use too. `docs/reference/settings.md` is generated
from the descriptions below. No ``repr`` and no error message shows a password.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from orchestrator.config.processors import processors
from orchestrator.config.urls import (
    check_audit_url,
    check_broker_url,
    check_notify_url,
    check_redis_url,
    redact_url,
)
from orchestrator.errors import ConfigurationError
from orchestrator.ids import MAX_SHARDS

ENV_PREFIX = "ORCHESTRA_"
#: The variable that names the TOML file; not itself a setting.
CONFIG_VARIABLE = "ORCHESTRA_CONFIG"
CONFIG_FILE = "orchestra.toml"
CONFIG_TABLE = "orchestra"
#: The tables of a TOML file: settings, the routing table, agents. One file may hold all of them.
TABLES = (CONFIG_TABLE, "routing", "agents")
#: Settings that are paths, in a TOML file relative to it.
_PATHS = ("data", "audit_path", "prompts", "notify_secret_file")
#: Variables of the prefix that are no settings: what a supervisor and the tests of crashes tell a process.
_OTHER_VARIABLES = frozenset(
    {
        CONFIG_VARIABLE,
        "ORCHESTRA_READY_FD",
        "ORCHESTRA_CRASH_AT",
        # Of a program that takes part in a run, and of an assistant's MCP server.
        "ORCHESTRA_SESSION_SOCKET",
        "ORCHESTRA_SESSION_TOKEN",
        "ORCHESTRA_MCP_TOKEN",
    }
)

KIB = 1024
MIB = 1024 * KIB
DAY_S = 86_400
#: What a budget says of one resource.
_AMOUNT = r"\s*(requests|tokens|usd)\s*=\s*([0-9]+(\.[0-9]*)?|\.[0-9]+)\s*"
#: Seconds that the ledger's Redis may take for one command: a loaded server needs so long at times, and none needs longer.
_LEAST_TIMEOUT_S = 2.0
_LONGEST_TIMEOUT_S = 30.0


def _split_at(separators: str) -> Callable[[object], object]:
    """Splits a text at any of these characters; a text that is a JSON list is read as that."""

    def split(value: object) -> object:
        if not isinstance(value, str):
            return value
        if value.startswith("["):
            return json.loads(value)
        return [part.strip() for part in re.split(f"[{separators}]", value) if part.strip()]

    return split


_split_names = _split_at(",")
_split_paths = _split_at(f",{os.pathsep}")


def _from_json(value: object) -> object:
    return json.loads(value) if isinstance(value, str) else value


def _none_word(value: object) -> object:
    return None if value == "none" else value


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def is_agents_file(name: str) -> bool:
    """Return True if an entry of ``agents`` names a file, and not a module to import."""
    return name.endswith((".py", ".toml")) or os.sep in name


RedisUrl = Annotated[str, AfterValidator(check_redis_url)]
AuditUrl = Annotated[str, AfterValidator(check_audit_url)]
BrokerUrl = Annotated[str, AfterValidator(check_broker_url)]
AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
Folders = Annotated[tuple[AbsolutePath, ...], BeforeValidator(_split_paths)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split_names)]
AgentSources = Annotated[tuple[str, ...], BeforeValidator(_split_paths)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
NotifyUrl = Annotated[str, AfterValidator(check_notify_url)]
NotifyEvent = Literal["question", "approval", "finished", "failed", "stopped", "dead"]
ProviderLimits = Annotated[
    dict[str, dict[Literal["requests_per_minute", "tokens_per_minute", "calls"], Count]],
    BeforeValidator(_from_json),
]


class Settings(BaseModel):
    """The settings of one stack. :func:`load_settings` builds them from all their sources."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)

    # Where things are
    redis_url: RedisUrl | None = Field(
        None,
        repr=False,
        description="Redis (6.2 or newer) or Valkey that holds the ledger: `redis://`, `rediss://` or `unix://`, "
        "with password and database number. Unset: the embedded Valkey of the data folder.",
    )
    broker_url: BrokerUrl | None = Field(
        None,
        repr=False,
        description="Celery broker, as kombu or redis-py spells it. Unset: the ledger's Redis.",
    )
    data: AbsolutePath = Field(
        Path(".orchestra"),
        description="Data folder: the embedded server's append-only file, keys, audit database, logs.",
    )
    audit_path: AbsolutePath | None = Field(
        None, description="Audit database file. Unset: `audit.sqlite` in the data folder."
    )
    prompts: AbsolutePath | None = Field(
        None,
        description="Folder with own prompt texts (`coordinator.md`, `specialist.md`, …), each in the place of the shipped one.",
    )
    audit_url: AuditUrl | None = Field(
        None,
        repr=False,
        description="Audit database on a PostgreSQL server, `postgresql://user:password@host/database`, instead of a file; "
        "every writer and reader of the stack needs it. Install the extra `postgres`.",
    )
    agents: AgentSources = Field(
        (),
        description="Modules or files (`.py`, `.toml`) that define agents, separated by commas or the "
        "system's path separator. A module is looked up among what is installed, then in the working directory. `@NAME` is an "
        "entry point of an installed package in the group `agent_orchestra.agents`, `@all` are all of them.",
    )
    serve: Names = Field(
        (),
        description="Which of these agents workers serve, separated by commas: names, and `tag:TAG` for all with a tag. "
        "Unset: all. The others are neither registered nor run here, and their keys are not needed.",
    )
    review_roots: Folders = Field(
        (),
        description="Folders below which the bundled agents `lead` and `reviewer` may read Python sources, for whoever "
        "gives them a task; unset: they are not there.",
    )

    # How much runs at once
    shards: int = Field(
        1,
        ge=1,
        le=MAX_SHARDS,
        description="Number of shards that trees are spread over by their root. All parts and clients of a stack have the "
        "same. It changes only while no part runs, and none that has trees is left out.",
    )
    concurrency: Count = Field(
        default_factory=lambda: max(4, processors()),
        description="Runs that one worker executes at once (processes). Default: the number of CPUs that the worker, or its "
        "container, may use, at least 4.",
    )

    # Models
    model_opus: str = Field(
        "anthropic:claude-opus-5-5",
        description="Model of the agents of tier `opus` that name none, as `provider:model`.",
    )
    model_sonnet: str = Field(
        "anthropic:claude-sonnet-5-5",
        description="Model of the agents of tier `sonnet`, and of those without a tier, that name none.",
    )
    model_haiku: str = Field(
        "anthropic:claude-haiku-5-5", description="Model of the agents of tier `haiku` that name none."
    )

    # Leases, timers, limits of time
    lease_s: Seconds = Field(
        15,
        description="Seconds without a renewal after which a run's holder counts as lost, "
        "on the observer's monotonic clock. Routers and audit writers take over what another consumer has held for "
        "that long and four times that long, callback services after a third of it. All parts of a stack have the same; "
        "it changes only while no part runs. Services and workers give up a "
        "connection on which no answer came for a third of it, at least 2 s and at most 30 s: with leases under 6 s one "
        "connection that has gone silent may cost a run its lease.",
    )
    heartbeat_s: Seconds = Field(
        3, description="Seconds between two renewals of a lease, and between two signs of life of a service."
    )
    run_time_limit_s: Seconds = Field(
        3600, description="Seconds that one run may take; after that it is stopped and its session fails."
    )
    question_time_limit_s: Seconds | None = Field(
        None,
        description="Seconds that an agent's question may stay open; after that its asker is told that no reply came. "
        "Unset: as long as it takes.",
    )
    approval_time_limit_s: Annotated[Seconds | None, BeforeValidator(_none_word)] = Field(
        2_592_000,
        description="Seconds that an approval may stay open; after that its default counts, which is a no unless the agent "
        "says otherwise. `none`: as long as it takes.",
    )
    stop_grace_s: Seconds = Field(
        10, description="Seconds that a running agent or a service is given to stop before it is killed."
    )
    max_lost_workers: Count = Field(
        20, description="Lost workers that one run survives; they do not use up the agent's attempts."
    )
    max_process_deaths: Count = Field(
        3,
        description="Worker processes that may die while they execute one run (a crash, or no memory left); at that "
        "many the run fails. A worker whose lease runs out counts for `max_lost_workers` instead.",
    )
    sweep_interval_s: Seconds = Field(2, description="Seconds between two reconciliation sweeps of a reaper.")
    replicas: int = Field(
        0,
        ge=0,
        description="Replicas that a submission, a claim, a step and a commit wait for (Redis `WAIT`), for a second at most.",
    )
    tree_ttl_s: Seconds = Field(
        7 * DAY_S, description="Seconds that a tree's keys live after its root is terminal."
    )

    # Payloads
    blob_ttl_s: Seconds = Field(
        7 * DAY_S, description="Seconds that a stored payload lives after it was last referenced."
    )
    max_payload_bytes: Count = Field(
        16 * MIB,
        description="Largest body in bytes that is opened, in whatever form it is sent, and that a new task may have.",
    )
    max_message_bytes: Count = Field(
        8 * MIB, description="Largest envelope in bytes that is parsed; a larger one is refused."
    )

    # Limits that refuse new work, never a delivery
    resume_max_items: Count = Field(
        500, description="Callbacks that one resume carries at most; the rest follows in the next."
    )
    resume_max_bytes: Count = Field(
        1 * MIB,
        description="Bytes of callback text that one resume carries at most; a single larger one is cut.",
    )
    printed_max_bytes: int = Field(
        16 * 1024,
        ge=0,
        le=1024 * 1024,
        description="Bytes of what an agent prints in one try of a run that `orchestra logs --text` has, the last ones; 0: "
        "nothing is kept. The log of the worker has all of it.",
    )
    tree_budget: str | None = Field(
        None,
        pattern=rf"^{_AMOUNT}(,{_AMOUNT})*$",
        description="What a tree may spend on models, unless its submitter sets another budget: some of `requests=N`, "
        "`tokens=N` and `usd=N`, separated by commas. Unset: as much as it takes.",
    )
    provider_limits: ProviderLimits = Field(
        default_factory=dict,
        description="Limits of the models of providers for each key, kept by all workers together: a table from a pattern of "
        "`provider/model` to some of `requests_per_minute`, `tokens_per_minute` and `calls` (at once). The first pattern "
        "that fits counts.",
    )
    provider_wait_s: float = Field(
        3,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that a run waits in its slot for the limits of a provider. For a longer wait it frees the slot "
        "and is tried again when its time has come; steps that it recorded are not executed again.",
    )
    provider_away_s: float = Field(
        600,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that a request of a model agent waits for a model server that cannot be reached, or that answers 502, "
        "503 or 504, without using up an attempt. Each attempt after that asks once.",
    )
    stream_max_entries: Count = Field(
        250_000,
        description="Entries in one stream above which new work is refused; replies, errors and commits never are.",
    )

    # Messages
    message_max_age_s: Seconds = Field(
        DAY_S,
        description="Seconds after which an unhandled message is too old to be accepted; duplicates of a message "
        "are recognised for at least as long.",
    )
    registration_patience_s: float = Field(
        20,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that a message waits for its recipient or sender to be registered, an attempt at most its timeout: "
        "a worker may be starting.",
    )
    registration_ttl_s: Annotated[Seconds | None, BeforeValidator(_none_word)] = Field(
        None,
        ge=60,
        description="Seconds after which an agent that no worker announces any more is no longer registered. Unset, or "
        "`none`: it stays, and what it is given waits for a worker, until `orchestra agents withdraw`.",
    )
    conversation_max_messages: Count = Field(
        1_000_000,
        description="Messages that one conversation may have, reports and replies apart; more are refused, so that no "
        "two agents talk for ever.",
    )
    dead_letters_max_entries: Count = Field(
        10_000,
        description="Dead letters that one shard keeps; above that the oldest are dropped, first those whose sender's "
        "signature did not count. The audit trail keeps their messages.",
    )
    dead_letters_max_bytes: Count = Field(
        64 * MIB,
        description="Bytes of dead letters that one shard keeps; above that they are dropped likewise.",
    )
    failed_dependency: Literal["fail", "ignore"] = Field(
        "fail",
        description="What becomes of a task when one that it depends on fails: it fails too, or it starts anyway.",
    )

    # Trust
    signature_algorithm: Literal["RSA-SHA256", "Ed25519"] = Field(
        "Ed25519", description="Algorithm of newly generated keys; both are always accepted."
    )
    encrypt: Literal["agents", "all"] = Field(
        "agents",
        description="Messages to encrypt for their recipients and to seal in the ledger: `agents`, those from and to agents "
        "that set `encrypt` and all that follow from them; `all`.",
    )
    signatures_required: bool = Field(
        True, description="Whether the router refuses an envelope without a signature."
    )

    submissions: Literal["open", "token"] = Field(
        "open",
        description="Who may begin a session with a plain Celery message: `open`, anybody who can write to the broker; "
        "`token`, whoever brings a token of `Client.token`. `Client` and `orchestra submit` write "
        "to the ledger and need none.",
    )
    remote_control: bool = Field(
        False,
        description="Whether workers obey Celery's remote control (`celery inspect`, `celery control`, the buttons of "
        "Flower). It knows no authentication: anyone who can write to the broker can then stop every worker.",
    )

    # Notifications
    notify_url: NotifyUrl | None = Field(
        None,
        repr=False,
        description="URL (`http` or `https`) that the notifier posts events to, as CloudEvents in JSON. Unset: none.",
    )
    notify_command: str | None = Field(
        None,
        min_length=1,
        description="Command with arguments, split as a shell does and run without one, that gets each event on its standard "
        "input. Unset: none.",
    )
    notify_events: Annotated[tuple[NotifyEvent, ...], BeforeValidator(_split_names)] = Field(
        ("question", "approval", "finished", "failed", "stopped", "dead"),
        description="Events that the notifier sends, separated by commas: `question` (a root asks the user), `approval` (an "
        "agent asks for a yes or no), `finished`, `failed` and `stopped` (a root has ended), `dead` (a callback is not delivered).",
    )
    notify_secret_file: AbsolutePath | None = Field(
        None,
        description="File with the secret that signs webhooks, readable by its owner only. Unset: `notify-secret` in the "
        "data folder, which the first notifier makes.",
    )

    # Console
    console: bool = Field(
        True,
        description="Whether `orchestra up` also runs the web console, where the extra `console` is installed.",
    )
    console_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description="Address that the console listens on. One that others reach needs `console_token` or `console_proxies`.",
    )
    console_port: int = Field(
        8787,
        ge=0,
        le=65_535,
        description="Port that the console listens on; 0: any free one. `orchestra up` takes a free one if it is in use.",
    )
    console_token: str | None = Field(
        None,
        min_length=16,
        repr=False,
        description="Lasting token with which anybody may act in the console. Unset: only tokens of one use, which "
        "`orchestra open` prints.",
    )
    console_proxies: Names = Field(
        (),
        description="Addresses or networks of reverse proxies whose header names the user of the console, separated by commas.",
    )
    console_user_header: str = Field(
        "X-Forwarded-User", min_length=1, description="Header in which those proxies name the user."
    )
    console_operators: Names = Field(
        (),
        description="Users of those proxies who may act in the console, separated by commas; all others may look.",
    )

    # Logs
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level of log lines that are written."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto",
        description="`console` for people, `json` for machines, `auto`: console on a terminal, else json.",
    )
    log_traces: bool = Field(
        False, description="Whether log lines of a run name its trace and span: `trace_id`, `span_id`."
    )

    @model_validator(mode="after")
    def _durations_fit(self) -> Settings:
        if self.heartbeat_s * 2 > self.lease_s:
            raise ValueError(
                f"heartbeat_s = {self.heartbeat_s:g} must be at most half of lease_s = {self.lease_s:g}, "
                "or one late heartbeat loses a run"
            )
        return self

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield from super().__repr_args__()
        for name in ("redis_url", "broker_url"):
            url = getattr(self, name)
            yield name, url if url is None else redact_url(url)
        # Its path may be what makes it secret.
        yield "notify_url", "***" if self.notify_url else None

    @property
    def command_timeout_s(self) -> float:
        """Seconds after which a service or a worker gives up a connection to the ledger that does not answer.

        Together with the longest time between two heartbeats, half of the lease, it leaves time to renew over another.
        """
        return min(_LONGEST_TIMEOUT_S, max(_LEAST_TIMEOUT_S, self.lease_s / 3))

    @property
    def audit_file(self) -> Path:
        """The file of the audit database, where it is one."""
        return self.audit_path or self.data / "audit.sqlite"

    @property
    def audit_database(self) -> Path | str:
        """The audit database: a file, or the URL of a server."""
        return self.audit_url or self.audit_file

    @property
    def audit_name(self) -> str:
        """The audit database as people may see it, without its password."""
        return redact_url(self.audit_url) if self.audit_url else str(self.audit_file)

    @property
    def notifies(self) -> bool:
        """True if events are sent to anyone."""
        return bool(self.notify_url or self.notify_command)

    @property
    def notify_secret_path(self) -> Path:
        """The file of the secret that signs webhooks."""
        return self.notify_secret_file or self.data / "notify-secret"

    @property
    def keys_dir(self) -> Path:
        """The folder of the private keys."""
        return self.data / "keys"

    @property
    def logs_dir(self) -> Path:
        """The folder of the services' log files."""
        return self.data / "logs"

    def to_env(self) -> dict[str, str]:
        """Return the settings that differ from their defaults as environment variables, for child processes.

        Passwords are passed this way and not as arguments, which every user of the machine can read.
        """
        env: dict[str, str] = {}
        for name in sorted(self.model_fields_set):
            value = getattr(self, name)
            if value is None and type(self).model_fields[name].default is None:
                continue
            if isinstance(value, dict):
                value = json.dumps(value)
            if isinstance(value, tuple):
                value = json.dumps([str(part) for part in value])
            env[ENV_PREFIX + name.upper()] = "none" if value is None else str(value)
        return env


def config_file() -> Path | None:
    """Return the TOML file that settings are read from, if there is one.

    Raises:
        ConfigurationError: ORCHESTRA_CONFIG names a file that does not exist.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        path = _absolute(Path(named))
        if not path.is_file():
            raise ConfigurationError(f"{CONFIG_VARIABLE} names {str(path)!r}, which is not a file")
        return path
    path = _absolute(Path(CONFIG_FILE))
    return path if path.is_file() else None


def read_config_file() -> dict[str, Any]:
    """Return the table ``[orchestra]`` of the TOML file; paths in it are relative to the file.

    Raises:
        ConfigurationError: the file cannot be read or is not TOML.
    """
    path = config_file()
    if path is None:
        return {}
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"cannot read settings from {path}: {error}") from error
    if (problem := unknown_table(document)) is not None:
        raise ConfigurationError(f"cannot read settings from {path}: {problem}")
    table = document.get(CONFIG_TABLE, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"cannot read settings from {path}: [{CONFIG_TABLE}] must be a table")
    folder = path.parent
    for name in _PATHS:
        if isinstance(table.get(name), str):
            table[name] = str(folder / Path(table[name]).expanduser())
    for name, is_path in (("review_roots", lambda _: True), ("agents", is_agents_file)):
        with suppress(ValueError):  # the model says what is wrong
            parts = _split_paths(table.get(name))
            if isinstance(parts, list):
                table[name] = [
                    str(folder / Path(one).expanduser()) if isinstance(one, str) and is_path(one) else one
                    for one in parts
                ]
    return table


def unknown_table(document: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the top of a TOML file: an unknown table, or a setting outside of a table; else None."""
    for name, value in document.items():
        if name in TABLES:
            continue
        if not isinstance(value, dict):
            near = did_you_mean(name, Settings.model_fields)
            place = f"below [{CONFIG_TABLE}]" if name in Settings.model_fields else f"into a table{near}"
            return f"{name!r} is outside of a table and is not read; move it {place}"
        tables = ", ".join(f"[{table}]" for table in TABLES)
        return f"there is no table [{name}], so it is not read (tables: {tables}){did_you_mean(name, TABLES)}"
    return None


def unknown_variables() -> list[str]:
    """Return a sentence about each environment variable of our prefix that is no setting."""
    known = {ENV_PREFIX + name.upper() for name in Settings.model_fields}
    return [
        f"warning: the environment variable {name} is not a setting and is ignored{did_you_mean(name, known)}"
        for name in sorted(os.environ)
        if name.startswith(ENV_PREFIX) and name not in known | _OTHER_VARIABLES
    ]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: the nearest known one, or nothing."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def read_environment() -> dict[str, str]:
    """Return the settings that environment variables give; an empty variable counts as not set."""
    variables = {name: os.environ.get(ENV_PREFIX + name.upper()) for name in Settings.model_fields}
    return {name: value for name, value in variables.items() if value}


def load_settings(**overrides: Any) -> Settings:
    """Build the settings; an override that is None counts as not given.

    Raises:
        ConfigurationError: names the setting, what is wrong with it, and where it may come from.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**{**read_config_file(), **read_environment(), **given})
    except ValidationError as error:
        raise ConfigurationError(_explain(error, given)) from None


def _explain(error: ValidationError, given: Mapping[str, Any]) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    message = str(first["msg"]).removeprefix("Value error, ")
    if not first["loc"]:
        return f"the settings do not fit together: {message}"
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        hint = did_you_mean(name, Settings.model_fields)
        source = config_file() if name not in given else None
        return f"there is no setting {name!r}{f' (in {source})' if source else ''}{hint}"
    variable = ENV_PREFIX + name.upper()
    if name in given:
        source_text = f"setting {name!r}"
    elif variable in os.environ:
        source_text = variable
    else:
        source_text = f"setting {name!r} in {config_file()}"
    return f"{source_text}: {message[0].lower() + message[1:] if message else message}"
