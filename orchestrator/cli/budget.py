"""`orchestra budget`: what a session and everything below it may spend, and who spent what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.names import session_argument
from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json, say
from orchestrator.cli.stack import open_client

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


@click.command()
@session_argument()
@json_option
@stack_options
def budget(settings: Settings, *, session: str, as_json: bool) -> None:
    """Show the budgets that SESSION counts against: what is spent, reserved and left, and which agents spent it."""
    from orchestrator.cli.documents.budgets import BudgetsDocument
    from orchestrator.policy.budget import RESOURCES, amount

    with open_client(settings) as client:
        found = client.budgets(session)
    if as_json:
        print_json(BudgetsDocument.of_states(session, found))
        return
    if not found:
        say(f"session {session} counts against no budget")
    for whose, state in found.items():
        say(f"budget of {whose}")
        for resource in state.limits:
            counts = (state.spent.get(resource, 0), state.limits[resource], state.reserved.get(resource, 0))
            spent, limit, held, left = (
                amount(resource, count).partition(" ")[0] for count in (*counts, state.left(resource) or 0)
            )
            say(f"  {RESOURCES[resource]}: {spent} of {limit} spent, {held} reserved, {left} left")
        for agent, used in sorted(state.users.items()):
            say(f"    {agent}: {', '.join(amount(name, used[name]) for name in RESOURCES if used.get(name))}")
