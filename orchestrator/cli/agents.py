"""`orchestra agents`: who is registered; register an external program; what a model reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import Refused
from orchestrator.cli.limits import limit, pause, unpause
from orchestrator.cli.names import agent_argument
from orchestrator.cli.options import SubCommands, json_option, settings_of, stack_options, time_option
from orchestrator.cli.output import print_answer, print_json, say, write_raw
from orchestrator.cli.stack import open_stack
from orchestrator.display.text import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.agents.definition import AgentDefinition
    from orchestrator.agents.registry import AgentRecord
    from orchestrator.config.settings import Settings


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
    from orchestrator.cli.documents.stack import AgentDocument, Agents
    from orchestrator.cli.limits import held_words
    from orchestrator.cli.table import Row, print_table, terminal_width
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
        documents = [
            AgentDocument.of(r).model_copy(
                update={
                    "served": served[r.name],
                    "versions": versions.get(r.name, {}),
                    "seen_ms": seen_ms.get(r.name),
                    "at_work": limits[r.name].at_work,
                    "limit": limits[r.name].limit,
                    "paused": limits[r.name].paused,
                }
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
    from orchestrator.cli.documents.stack import PromptDocument
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
        print_json(PromptDocument(agent=agent, prompt=text))
    else:
        write_raw(text)
