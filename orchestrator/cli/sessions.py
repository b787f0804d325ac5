"""`orchestra sessions`, `tree` and `logs`: what is there, and what happened."""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING

import click

from orchestrator.cli.names import session_argument
from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json, say

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


@click.command()
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many at most.")
@click.option(
    "--state",
    type=click.Choice(
        ["scheduled", "pending", "running", "idle", "finished", "failed", "stopped", "deleted"]
    ),
    help="Only those in this state; `scheduled`: those that begin later, the next one first.",
)
@json_option
@stack_options
def sessions(settings: Settings, *, limit: int, state: str | None, as_json: bool) -> None:
    """List the latest root sessions, newest first."""
    from orchestrator.cli.documents import Sessions
    from orchestrator.cli.render import age, agent_width, session_line
    from orchestrator.client.client import Client

    with Client(settings) as client:
        if state == "scheduled":
            found = client.scheduled()[:limit]
        elif state is not None:
            found = [one for one in client.sessions(limit=1_000_000) if one.state == state][:limit]
        else:
            found = client.sessions(limit=limit)
    if as_json:
        print_json(Sessions.of({"sessions": found}))
        return
    width = agent_width(found)
    for session in found:
        line = session_line(session, width=width)
        say(f"{session.id}  {age(session.created_ms):>6} ago  {line}")
    if not found and state is not None:
        say(f"no session is {state}", err=True)
    elif not found:
        say('no sessions yet; submit one: orchestra submit AGENT "PROMPT"', err=True)


@click.command()
@session_argument()
@json_option
@stack_options
def tree(settings: Settings, *, session: str, as_json: bool) -> None:
    """Show SESSION and everything below it."""
    from orchestrator.cli.documents import Sessions
    from orchestrator.cli.render import PromiseCount, tree_lines
    from orchestrator.client.client import Client
    from orchestrator.policy.budget import total

    with Client(settings) as client:
        found = client.tree(session)
    if as_json:
        print_json(Sessions.of({"sessions": found}))
        return
    for line in tree_lines(found):
        say(str(line))
    say(str(PromiseCount.of(found)))
    if spent := total(session.used for session in found):
        say(f"spent: {spent}")


@click.command()
@session_argument()
@json_option
@stack_options
def logs(settings: Settings, *, session: str, as_json: bool) -> None:
    """Show what happened in SESSION, in order: its runs, what they carried, and what it launched and heard."""
    from orchestrator.cli.documents import Events
    from orchestrator.client.client import Client

    with Client(settings) as client:
        events = client.history(session)
    if as_json:
        print_json(Events.of({"session": session, "events": events}))
        return
    for event in events:
        say(f"{event.at}  {event.what:<9}  {event.text}")
        if event.detail:
            say(indent(event.detail.rstrip(), "    "), lines=True)
