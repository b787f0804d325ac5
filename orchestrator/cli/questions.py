"""`orchestra questions`, `reply`, `approvals`, `approve` and `deny`: what agents ask the user, and the answers."""

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
    from orchestrator.client.approvals import Approval
    from orchestrator.client.client import Client
    from orchestrator.config.settings import Settings

#: Characters of an approval's arguments that are shown; `--json` has all.
_SHOWN_CHARS = 2000

_comment_option = click.option(
    "-m",
    "--comment",
    default="",
    metavar="TEXT",
    help="For the agent and the audit trail; - reads standard input.",
)
_by_option = click.option("--by", default="", metavar="NAME", help="Who says so. Default: your user name.")


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


@click.command()
@session_argument(required=False, default="")
@json_option
@stack_options
def approvals(settings: Settings, *, session: str, as_json: bool) -> None:
    """List what waits for your yes or no, oldest first; with SESSION only what it and its tree below it ask."""
    from orchestrator.cli.documents.questions import ApprovalList
    from orchestrator.cli.render import age

    with open_client(settings) as client:
        found = client.approvals(session)
    if as_json:
        print_json(ApprovalList.of({"approvals": found}))
        return
    for one in found:
        say(f"{one.id}  {age(one.asked_ms):>6} ago  {one.agent}: {one.tool}{_until(one)}")
        arguments = json.dumps(one.arguments, ensure_ascii=False)
        cut = "" if len(arguments) <= _SHOWN_CHARS else f"… ({len(arguments)} characters, --json has all)"
        say(f"    with      {arguments[:_SHOWN_CHARS]}{cut}")
        if one.reason:
            say(f"    because   {one.reason}")
        title = f" ({one.title})" if one.title else ""
        say(f"    for       {one.session}{title}, at depth {one.depth} of {one.root}")
        say(f"    digest    {one.digest}")
        if one.fault:
            say(f"NOT GENUINE: {one.fault}; it can only be denied", mark="    ", colour="red")
    say("answer: orchestra approve ID, or orchestra deny ID" if found else "nothing waits for you", err=True)


def _until(one: Approval) -> str:
    from orchestrator.machine import isoformat

    return f"; {one.default} at {isoformat(one.expires_ms)}" if one.expires_ms else ""


@click.command()
@click.argument("approval", nargs=-1, required=True)
@_comment_option
@_by_option
@click.option(
    "--digest",
    default="",
    metavar="SHA256",
    help="Of what you have seen, or its first 8 digits or more; refuses anything else.",
)
@json_option
@stack_options
def approve(
    settings: Settings, *, approval: tuple[str, ...], comment: str, by: str, digest: str, as_json: bool
) -> None:
    """Say yes to APPROVAL (its id, as `orchestra approvals` shows it): this call, with these arguments, once."""
    if digest and len(approval) > 1:
        raise click.UsageError("--digest is of one approval; name one")
    _decide(settings, approval, approved=True, comment=comment, by=by, digest=digest, as_json=as_json)


@click.command()
@click.argument("approval", nargs=-1, required=True)
@_comment_option
@_by_option
@json_option
@stack_options
def deny(settings: Settings, *, approval: tuple[str, ...], comment: str, by: str, as_json: bool) -> None:
    """Say no to APPROVAL (its id, as `orchestra approvals` shows it). The agent gets the comment and goes on."""
    _decide(settings, approval, approved=False, comment=comment, by=by, digest="", as_json=as_json)


def _decide(
    settings: Settings,
    names: tuple[str, ...],
    *,
    approved: bool,
    comment: str,
    by: str,
    digest: str,
    as_json: bool,
) -> None:
    from orchestrator.cli.documents.questions import Decided

    said, done = text_of(comment), []
    try:
        with open_client(settings) as client:
            for name in names:
                one = (
                    client.approve(name, said, digest=digest, by=by)
                    if approved
                    else client.deny(name, said, by=by)
                )
                done.append(one)
                if not as_json:
                    verdict, colour = ("approved ", "green") if approved else ("denied ", "yellow")
                    say(f"{one.agent} in {one.session}: {one.tool}", mark=verdict, colour=colour)
    finally:
        # What was decided counts, also if the next one is refused.
        if as_json and done:
            print_json(Decided.of({"decided": done, "approved": approved, "comment": said}))
