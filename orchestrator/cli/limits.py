"""`orchestra agents pause`, `unpause` and `limit`: what may run, and how much of it at once, while the stack runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from orchestrator.cli.exit_codes import Refused
from orchestrator.cli.names import agent_argument, session_argument
from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_answer, print_json, say
from orchestrator.cli.stack import open_stack

if TYPE_CHECKING:
    from orchestrator.bootstrap import Container
    from orchestrator.config.settings import Settings
    from orchestrator.ledger.concurrency import AgentLimit, Kind, Most

_as_option = click.option(
    "--as",
    "kind",
    type=click.Choice(["agent", "queue"]),
    help="What NAME is. Default: the registered agent of that name, else the queue.",
)


def _most(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Most | None:
    if value is None:
        return None
    if value == "none":
        return "none"
    if value == "default":
        return "default"
    try:
        return int(value)
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
        _ring(parts, agents)
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
        _ring(parts, agents)
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
    from orchestrator.cli.documents.stack import LimitsDocument

    concurrency = parts.concurrency
    names = [record.name for record in parts.agents.all() if not record.external]
    agents = [one for one in concurrency.agents(names) if one.limit is not None or one.paused]
    trees, each = concurrency.trees(), concurrency.of_each_tree()
    queues = sorted(name for kind, name in concurrency.paused() if kind == "queue")
    if as_json:
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


def _ring(parts: Container, agents: Sequence[str]) -> None:
    """Notify workers of runs that may begin now; while the broker is away the sweep does."""
    from orchestrator.errors import ServerUnavailable

    try:
        parts.ring(dict.fromkeys(agents))
    except ServerUnavailable as error:
        say(f"the sweep tells the workers: {error}", err=True)
