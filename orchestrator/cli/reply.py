"""`orchestra questions` and `orchestra reply`: what agents ask the user, and the answers."""

from __future__ import annotations

import json
from textwrap import indent
from typing import TYPE_CHECKING

import click

from orchestrator.cli.names import session_argument
from orchestrator.cli.options import json_option, stack_options, text_of
from orchestrator.cli.output import print_answer, print_json, say
from orchestrator.cli.stack import open_client
from orchestrator.errors import InputError
from orchestrator.ids import is_session_id

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.config.settings import Settings


@click.command()
@session_argument(required=False)
@json_option
@stack_options
def questions(settings: Settings, *, session: str | None, as_json: bool) -> None:
    """List what root sessions ask you, oldest first; with SESSION, every open question in its tree."""
    from orchestrator.cli.documents.questions import Questions

    with open_client(settings) as client:
        found = client.questions(session)
    if as_json:
        print_json(Questions.of({"questions": found}))
        return
    for asked in found:
        kind = "" if asked.kind == "query" else f" [{asked.kind}]"
        say(f"{asked.id}{kind}  {asked.agent}: {asked.title}")
        say(indent(asked.text.rstrip(), "    "), lines=True)
        if asked.context is not None:
            say(indent(json.dumps(asked.context, ensure_ascii=False, indent=2), "    "), lines=True)
    say("answer: orchestra reply QUESTION TEXT" if found else "no open questions", err=True)


@click.command()
@session_argument("question", bare=False)
@click.argument("text")
@json_option
@stack_options
def reply(settings: Settings, *, question: str, text: str, as_json: bool) -> None:
    """Answer QUESTION (its id, as `orchestra questions` lists it) with TEXT (- reads standard input).

    QUESTION may also be a session, or @last, that asks one thing.
    """
    from orchestrator.cli.documents.questions import Replied

    with open_client(settings) as client:
        if is_session_id(question):
            question = _asked_by(client, question)
        session = client.reply(question, text_of(text))
    print_answer(
        Replied(session=session, question=question), f"{session} will go on with it", as_json=as_json
    )


def _asked_by(client: Client, session: str) -> str:
    """The one open question of a session."""
    asked = [one.id for one in client.questions(session) if one.session == session]
    if len(asked) != 1:
        what = f"asks {len(asked)} things ({', '.join(asked)}): name one" if asked else "asks nothing"
        raise InputError(
            f"session {session} {what}; `orchestra questions {session}` lists what its tree asks"
        )
    return asked[0]
