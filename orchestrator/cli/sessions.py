"""`orchestra sessions`, `tree`, `logs` and `budget`: what is there, what happened, and what it cost."""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING

import click

from orchestrator.cli.names import session_argument
from orchestrator.cli.options import filter_options, json_option, stack_options
from orchestrator.cli.output import print_json, say
from orchestrator.cli.stack import open_client

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings
    from orchestrator.ledger.model import SessionFilter


@click.command()
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many at most.")
@filter_options
@json_option
@stack_options
def sessions(settings: Settings, *, limit: int, only: SessionFilter, as_json: bool) -> None:
    """List the latest root sessions, newest first."""
    from orchestrator.cli.render import (
        STYLES,
        Row,
        age,
        is_narrow,
        print_table,
        session_about,
        short_ids,
        terminal_width,
    )

    with open_client(settings) as client:
        if only.states == {"scheduled"}:
            shown = [one for one in client.scheduled() if only.fits(one)][:limit]
        else:
            shown = client.sessions(limit=limit, where=only.fits if only else None)
    if as_json:
        from orchestrator.cli.documents.sessions import Sessions

        print_json(Sessions.of({"sessions": shown}))
        return
    width = terminal_width()
    ids = short_ids([one.id for one in shown], width)
    rows = [
        Row(
            (
                ids[one.id],
                f"{age(one.created_ms)} ago",
                one.agent,
                one.state.value,
                session_about(one, narrow=is_narrow(width)),
            ),
            STYLES[one.state],
        )
        for one in shown
    ]
    if shown:
        print_table(("SESSION", "AGE", "AGENT", "STATE", "ABOUT"), rows, styled=3, width=width)
    elif only:
        say("no session is like that; `orchestra sessions` lists what is there", err=True)
    else:
        say('no sessions yet; submit one: orchestra submit AGENT "PROMPT"', err=True)


@click.command()
@session_argument()
@filter_options
@json_option
@stack_options
def tree(settings: Settings, *, session: str, only: SessionFilter, as_json: bool) -> None:
    """Show SESSION and everything below it; of a part of it, with the sessions above each."""
    from orchestrator.cli.render import Row, is_narrow, print_table, short_ids, terminal_width, tree_lines
    from orchestrator.ledger.model import Tally, with_those_above
    from orchestrator.policy.budget import total

    with open_client(settings) as client:
        members = client.tree(session)
    shown = with_those_above(members, only.fits)
    if as_json:
        from orchestrator.cli.documents.sessions import Sessions

        print_json(Sessions.of({"sessions": shown}))
        return
    width = terminal_width()
    ids = short_ids([one.id for one in shown], width)
    rows = []
    for line in tree_lines(shown, narrow=is_narrow(width)):
        name, *rest = line.cells
        rows.append(Row((line.indent + ids[name], *rest), line.style))
    if rows:
        print_table(("SESSION", "AGENT", "STATE", "ABOUT"), rows, styled=2, width=width)
    else:
        say("no session of the tree is like that", err=True)
    say(str(Tally.of(members)))
    if spent := total(session.used for session in members):
        say(f"spent: {spent}")


@click.command()
@session_argument()
@click.option(
    "--text",
    "texts",
    is_flag=True,
    help="Also what went in and came out, as the ledger holds it: task, callbacks, messages, answer, and what the agent "
    "printed or its model said.",
)
@json_option
@stack_options
def logs(settings: Settings, *, session: str, texts: bool, as_json: bool) -> None:
    """Show what happened in SESSION, in order: its runs, what they carried, and what it launched and received."""
    with open_client(settings) as client:
        events = client.history(session, texts=texts)
    if as_json:
        from orchestrator.cli.documents.sessions import Events

        print_json(Events.of({"session": session, "events": events}))
        return
    for event in events:
        say(f"{event.at}  {event.what:<9}  {event.text}")
        if event.detail:
            say(indent(event.detail.rstrip(), "    "), lines=True)


@click.command()
@session_argument()
@json_option
@stack_options
def budget(settings: Settings, *, session: str, as_json: bool) -> None:
    """Show the budgets that SESSION counts against: what is spent, reserved and left, and which agents spent it."""
    from orchestrator.policy.budget import RESOURCES, amount

    with open_client(settings) as client:
        budgets = client.budgets(session)
    if as_json:
        from orchestrator.cli.documents.sessions import BudgetsDocument

        print_json(BudgetsDocument.of_states(session, budgets))
        return
    if not budgets:
        say(f"session {session} counts against no budget")
    for whose, state in budgets.items():
        say(f"budget of {whose}")
        for resource in state.limits:
            counts = (state.spent.get(resource, 0), state.limits[resource], state.reserved.get(resource, 0))
            spent, limit, reserved, left = (
                amount(resource, count).partition(" ")[0] for count in (*counts, state.left(resource) or 0)
            )
            say(f"  {RESOURCES[resource]}: {spent} of {limit} spent, {reserved} reserved, {left} left")
        for agent, used in sorted(state.users.items()):
            say(f"    {agent}: {', '.join(amount(name, used[name]) for name in RESOURCES if used.get(name))}")
