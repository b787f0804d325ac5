"""`orchestra agents`: who is registered, what bounds them; register an external program; what a model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from orchestrator.cli.exit_codes import Refused
from orchestrator.cli.names import agent_argument, session_argument
from orchestrator.cli.options import SubCommands, json_option, settings_of, stack_options, time_option
from orchestrator.cli.output import print_answer, print_json, say, write_raw
from orchestrator.cli.stack import open_stack
from orchestrator.display.text import counted

if TYPE_CHECKING:
    from orchestrator.agents.definition import AgentDefinition
    from orchestrator.agents.registry import AgentRecord
    from orchestrator.bootstrap import Container
    from orchestrator.config.settings import Settings
    from orchestrator.ledger.concurrency import AgentLimit, Kind, Most


_as_option = click.option(
    "--as",
    "kind",
    type=click.Choice(["agent", "queue"]),
    help="What NAME is. Default: the registered agent of that name, else the queue.",
)


#: Limits that are no numbers.
_NAMED: Final[Mapping[str, Most]] = {"none": "none", "default": "default"}


def _most(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Most | None:
    if value is None:
        return None
    try:
        return _NAMED.get(value) or int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a number; give a number, none or default") from None


@click.command()
@agent_argument("name", metavar="AGENT|QUEUE")
@_as_option
@json_option
@stack_options
def pause(settings: Settings, *, name: str, kind: Kind | None, as_json: bool) -> None:
    """Hold back the runs of AGENT, or of the agents of QUEUE, until `orchestra agents unpause`.

    Runs that are at work go on to their end. What becomes ready meanwhile waits, and nothing of it is lost.
    """
    with open_stack(settings, "limits") as parts:
        kind, agents = _named(parts, name, kind)
        changed = parts.concurrency.pause(kind, name)
    _tell(kind, name, agents, paused=True, changed=changed, as_json=as_json)


@click.command()
@agent_argument("name", metavar="AGENT|QUEUE")
@_as_option
@json_option
@stack_options
def unpause(settings: Settings, *, name: str, kind: Kind | None, as_json: bool) -> None:
    """Let the runs of AGENT, or of the agents of QUEUE, begin again."""
    with open_stack(settings, "limits") as parts:
        known = [k for k, n in parts.concurrency.paused() if n == name]
        if kind is None and len(known) == 1:
            kind = "queue" if known[0] == "queue" else "agent"
        kind, agents = _named(parts, name, kind)
        changed = parts.concurrency.unpause(kind, name, agents=agents)
        _wake(parts, agents)
    _tell(kind, name, agents, paused=False, changed=changed, as_json=as_json)


@click.command()
@session_argument("name", bare=False, metavar="[AGENT|SESSION]", required=False)
@click.argument("most", callback=_most, metavar="[N|none|default]", required=False)
@click.option(
    "--each-tree",
    callback=_most,
    metavar="N|none|default",
    help="The limit of every tree that has none of its own.",
)
@json_option
@stack_options
def limit(
    settings: Settings, *, name: str | None, most: Most | None, each_tree: Most | None, as_json: bool
) -> None:
    """Limit the runs of AGENT, or of the tree of SESSION, to N at once; without arguments: list the limits.

    `none`: any number. `default`: what the agent's definition says. It counts from the next run on:
    what is at work goes on. A run that waits in a call does not count.
    """
    from orchestrator.ids import is_session_id

    with open_stack(settings, "limits") as parts:
        concurrency = parts.concurrency
        agents: list[str] = []
        if name is not None:
            if most is None:
                raise click.UsageError(f"say how many: orchestra agents limit {name} N")
            if is_session_id(name):
                agents += concurrency.limit_tree(parts.ledger.session(name).root, most)
            else:
                _named(parts, name, "agent")
                concurrency.limit_agent(name, most)
                agents.append(name)
        if each_tree is not None:
            agents += concurrency.limit_trees(each_tree)
        _wake(parts, agents)
        _list(parts, as_json=as_json)


def held_words(limit: AgentLimit) -> str:
    """Return an agent's limit and pause as text, to be appended to a sentence about the agent."""
    from orchestrator.machine import isoformat

    words = f", {limit.at_work} of at most {limit.limit} at work" if limit.limit is not None else ""
    if limit.paused:
        words += f", {'QUEUE ' if limit.paused == 'queue' else ''}PAUSED since {isoformat(limit.since_ms)}"
    return words


def _named(parts: Container, name: str, kind: Kind | None) -> tuple[Kind, list[str]]:
    """Return the kind of a name, agent or queue, and the agents that a pause or limit of it concerns.

    Raises:
        Refused: no registered agent and no queue has it, or it is an external program's.
    """
    from orchestrator.config.settings import did_you_mean

    records = parts.agents.all()
    what = kind or "agent or queue"
    own = [record.name for record in records if record.name == name]
    of_queue = [record.name for record in records if record.queue == name and not record.external]
    if kind is None:
        kind = "agent" if own or not of_queue else "queue"
    if any(record.external for record in records if record.name == name and kind == "agent"):
        raise Refused(f"{name!r} is an external program: it reads its work from its inbox; stop it there")
    agents = own if kind == "agent" else of_queue
    if not agents:
        known = {
            record.name if kind == "agent" else record.queue for record in records if not record.external
        }
        there = (
            f"there are: {', '.join(sorted(known))}" if known else "none is registered; start a worker first"
        )
        raise Refused(f"no {what} {name!r} is registered ({there}){did_you_mean(name, known)}")
    return kind, agents


def _tell(
    kind: Kind, name: str, agents: Sequence[str], *, paused: bool, changed: bool, as_json: bool
) -> None:
    from orchestrator.cli.documents.stack import Paused

    before, after = ("was paused already", "is paused") if paused else ("was not paused", "goes on")
    of = f" ({', '.join(agents)})" if kind == "queue" else ""
    print_answer(
        Paused(kind=kind, name=name, paused=paused, changed=changed, agents=tuple(agents)),
        f"{kind} {name}{of} {after if changed else before}",
        as_json=as_json,
    )


def _list(parts: Container, *, as_json: bool) -> None:

    concurrency = parts.concurrency
    names = [record.name for record in parts.agents.all() if not record.external]
    agents = [one for one in concurrency.agents(names) if one.limit is not None or one.paused]
    trees, each = concurrency.trees(), concurrency.of_each_tree()
    queues = sorted(name for kind, name in concurrency.paused() if kind == "queue")
    if as_json:
        from orchestrator.cli.documents.stack import LimitsDocument

        print_json(
            LimitsDocument.of({"agents": agents, "each_tree": each, "trees": trees, "paused_queues": queues})
        )
        return
    for one in agents:
        say(f"agent {one.agent}{held_words(one)}")
    for queue in queues:
        say(f"queue {queue}, PAUSED")
    if each is not None:
        say(f"each tree, at most {each} at work")
    for tree in trees:
        most = f" of at most {tree.limit}" if tree.limit is not None else ""
        blocked = f", {tree.blocked} ready wait" if tree.blocked else ""
        say(f"tree {tree.root}, {tree.at_work}{most} at work{blocked}")
    if not (agents or queues or trees or each is not None):
        say("nothing is limited and nothing is paused")


def _wake(parts: Container, agents: Sequence[str]) -> None:
    """Notify workers of runs that may begin now; while the broker is away the sweep does."""
    from orchestrator.errors import ServerUnavailable

    try:
        parts.wake(dict.fromkeys(agents))
    except ServerUnavailable as error:
        say(f"the sweep tells the workers: {error}", err=True)


@click.group("agents", cls=SubCommands, invoke_without_command=True)
@click.option(
    "--tag",
    "tags",
    metavar="TAG",
    multiple=True,
    help="Only those with this tag; may be repeated for several.",
)
@click.option(
    "--state",
    "states",
    type=click.Choice(["served", "unserved", "paused"]),
    multiple=True,
    help="Only those that a living worker serves, that none does, or that are paused; may be repeated.",
)
@time_option("--since", help="Only those announced since: how long ago (15m, 2h, 7d) or a time.")
@time_option("--until", help="Only those not announced since: the same.")
@json_option
@stack_options
@click.pass_context
def agents(
    context: click.Context,
    *,
    settings: Settings,
    as_json: bool,
    tags: tuple[str, ...],
    states: tuple[str, ...],
    since_ms: int | None,
    until_ms: int | None,
) -> None:
    """List the registered agents.

    A worker announces its agents every 10 seconds. An external program is announced once, and neither --since nor --until
    lists it.
    """
    from orchestrator.cli.render import Row, print_table, terminal_width
    from orchestrator.runtime.service import is_served, living_agents, living_versions

    if context.invoked_subcommand is not None:
        return
    with open_stack(settings, "agents") as parts:
        found = [record for record in parts.agents.all() if set(tags) <= set(record.tags)]
        living = living_agents(parts.redis)
        versions = living_versions(parts.redis)
        limits = {limit.agent: limit for limit in parts.concurrency.agents([r.name for r in found])}
        seen_ms = parts.agents.seen_ms()
    served = {record.name: None if record.external else is_served(record, living) for record in found}

    def is_listed(record: AgentRecord) -> bool:
        here, seen = served[record.name], seen_ms.get(record.name)
        state = {"unserved" if here is False else "served", "paused" if limits[record.name].paused else ""}
        return (
            (not states or bool(state & set(states)))
            and (since_ms is None or (seen is not None and seen >= since_ms))
            and (until_ms is None or (seen is not None and seen <= until_ms))
        )

    found = list(filter(is_listed, found))
    if as_json:
        from orchestrator.cli.documents.stack import AgentDocument, Agents

        documents = [
            AgentDocument.of(
                r,
                served=served[r.name],
                versions=versions.get(r.name, {}),
                seen_ms=seen_ms.get(r.name),
                at_work=limits[r.name].at_work,
                limit=limits[r.name].limit,
                paused=limits[r.name].paused,
            )
            for r in found
        ]
        print_json(Agents(agents=tuple(documents)))
        return
    rows = []
    for record in found:
        notes = [
            f"tags {' '.join(record.tags)}" if record.tags else "",
            held_words(limits[record.name]).removeprefix(", "),
            _version_words(record, versions.get(record.name, {})).removeprefix(", "),
            "NO LIVING WORKER SERVES IT" if served[record.name] is False else "",
        ]
        about = "  ".join(filter(None, [", ".join(filter(None, notes)), record.description]))
        role = f"{record.role} {record.tier}" if record.tier else record.role
        style = "bold red" if served[record.name] is False else ""
        rows.append(Row((record.name, role, record.executor, record.queue, about), style))
    if rows:
        print_table(("AGENT", "ROLE", "EXECUTOR", "QUEUE", "ABOUT"), rows, styled=0, width=terminal_width())
    if not found and (states or since_ms or until_ms):
        say("no registered agent is like that; `orchestra agents` lists all", err=True)
    elif not found and tags:
        say(f"no registered agent has the tags {' '.join(tags)}", err=True)
    elif not found:
        say(
            "no agents are registered; start a worker, for example: orchestra up --agents my_agents.py",
            err=True,
        )


def _version_words(record: AgentRecord, versions: Mapping[str, int]) -> str:
    """Which versions there are, where that matters: the sessions of the agent are bound to one, or there are several."""
    if record.on_deploy == "latest" and len(versions) < 2:
        return ""
    words = ", ".join(f"{version} ({counted(number, 'worker')})" for version, number in versions.items())
    how = "" if record.on_deploy == "latest" else f", on deploy {record.on_deploy}"
    return f"{how}, version {words or record.version}"


agents.commands.update(pause=pause, unpause=unpause, limit=limit)


@agents.command("register")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["coordinator", "specialist"]),
    default="specialist",
    show_default=True,
    help="Its rank: it may delegate to equal or lower ones.",
)
@click.option("--tier", type=click.Choice(["opus", "sonnet", "haiku"]), help="The model that it asks for.")
@click.option("--escalates-to", metavar="AGENT", default="", help="Who its errors and escalations go to.")
@click.option("--may-send-to", metavar="AGENT", multiple=True, help="Only to these; may be repeated.")
@click.option("--accepts-from", metavar="AGENT", multiple=True, help="Only from these; may be repeated.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="What it is found by; may be repeated.")
@json_option
@stack_options
def register(
    *,
    settings: Settings,
    as_json: bool,
    name: str,
    **fields: Any,
) -> None:
    """Register NAME, an external program that writes to an outbox and reads from an inbox of its own.

    It stays registered until it is withdrawn. Its public key is made known with `orchestra keys`.
    """
    from orchestrator.agents.definition import check_name, check_tag
    from orchestrator.agents.registry import SYSTEM_AGENTS, AgentRecord
    from orchestrator.cli.documents.stack import AgentDocument
    from orchestrator.errors import InputError
    from orchestrator.policy.routing import TAG_PREFIX
    from orchestrator.router.external import make_boxes
    from orchestrator.streams import RedisStreams

    peers = (*fields["may_send_to"], *fields["accepts_from"])
    for named in (name, *filter(None, [fields["escalates_to"]]), *peers):
        check_name(named.removeprefix(TAG_PREFIX) if named in peers else named)
    for tag in fields["tags"]:
        check_tag(tag)
    # No names at all: anybody.
    limits = {which: fields.pop(which) or None for which in ("may_send_to", "accepts_from")}
    record = AgentRecord.model_validate({"name": name, "executor": "foreign", **fields, **limits})
    with open_stack(settings, "agents") as parts:
        known = parts.agents.get(name)
        if name in SYSTEM_AGENTS or (known is not None and not known.external):
            raise InputError(f"{name!r} is the name of an agent that the stack itself runs; choose another")
        parts.agents.announce([record])
        make_boxes(RedisStreams(parts.redis), [name], settings.shards)
    print_answer(
        AgentDocument.of(record), f"{name} is registered as an external {record.role}", as_json=as_json
    )


@agents.command("withdraw")
@agent_argument("name")
@json_option
@stack_options
def withdraw(*, settings: Settings, name: str, as_json: bool) -> None:
    """Forget NAME; a worker that still serves it registers it again."""
    from orchestrator.cli.documents.stack import Withdrawn
    from orchestrator.config.settings import did_you_mean

    with open_stack(settings, "agents") as parts:
        withdrawn = parts.agents.withdraw(name)
        known = [] if withdrawn else [record.name for record in parts.agents.all()]
    if not withdrawn:
        raise Refused(
            f"no agent {name!r} is registered; `orchestra agents` lists those that are{did_you_mean(name, known)}"
        )
    print_answer(Withdrawn(agent=name, registered=False), f"{name} is no longer registered", as_json=as_json)


@agents.command("prompt")
@agent_argument()
@click.option(
    "--agents",
    multiple=True,
    metavar="MODULE_OR_FILE",
    help="Where agents are defined. Default: the setting `agents`.",
)
@click.option("--root", is_flag=True, help="As if a user gave the agent its task, and not another agent.")
@json_option
def prompt(*, agent: str, agents: tuple[str, ...], root: bool, as_json: bool) -> None:
    """Print what the model of AGENT will see before its task: its own instructions and the protocol. Needs no stack."""
    from orchestrator.agents.loader import load_agents
    from orchestrator.agents.options import LlmOptions
    from orchestrator.config.settings import did_you_mean
    from orchestrator.worker.executors.protocol import protocol_text, takes_tagged_answers

    settings = settings_of(agents=agents or None)
    catalogue = load_agents(settings.agents)
    definition: AgentDefinition | None = catalogue.get(agent)
    if definition is None:
        raise Refused(
            f"no agent {agent!r} is defined in {', '.join(settings.agents) or 'any file that is named here'}; name the "
            f"module or file that defines it with --agents{did_you_mean(agent, catalogue)}"
        )
    sub_session = not root and takes_tagged_answers(definition)
    parts = [protocol_text(definition, sub_session=sub_session, folder=settings.prompts)]
    options = definition.options
    if isinstance(options, LlmOptions):
        parts = [options.all_instructions, *parts]
    text = "\n\n".join(filter(None, parts))
    if as_json:
        from orchestrator.cli.documents.stack import PromptDocument

        print_json(PromptDocument(agent=agent, prompt=text))
    else:
        write_raw(text)
