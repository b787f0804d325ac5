"""`orchestra reply`: a user's answer to a question of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import json_option, stack_options, text_of
from orchestrator.cli.output import print_json, say

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


@click.command()
@click.argument("question")
@click.argument("text")
@json_option
@stack_options
def reply(settings: Settings, *, question: str, text: str, as_json: bool) -> None:
    """Answer QUESTION (its id, as `orchestra why` and `orchestra logs` show it) with TEXT (- reads standard input)."""
    from orchestrator.cli.documents import Replied
    from orchestrator.client.client import Client

    with Client(settings) as client:
        session = client.reply(question, text_of(text))
    if as_json:
        print_json(Replied(session=session, question=question))
    else:
        say(f"{session} will go on with it")
