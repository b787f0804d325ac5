"""`orchestra questions`, `reply`, `approve` and `deny`: what agents ask the user, and the answers."""

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
    """List the open questions of root sessions and the open approvals, oldest first; with SESSION, of its tree only."""
    with open_client(settings) as client:
        asked, approvals = client.questions(session), client.approvals(session or "")
    if as_json:
        from orchestrator.cli.documents.sessions import Questions

        print_json(Questions.of({"questions": asked, "approvals": approvals}))
        return
    for question in asked:
        what = question.id if question.kind == "query" else f"{question.id} [{question.kind}]"
        say(f"{what}  {question.agent}: {question.title}")
        say(indent(question.text.rstrip(), "    "), lines=True)
        if question.context is not None:
            say(indent(json.dumps(question.context, ensure_ascii=False, indent=2), "    "), lines=True)
    for approval in approvals:
        _print_approval(approval)
    answers = ["reply QUESTION TEXT"] * bool(asked) + ["approve ID", "deny ID"] * bool(approvals)
    say("answer: orchestra " + " | ".join(answers) if answers else "nothing waits for you", err=True)


def _print_approval(one: Approval) -> None:
    from orchestrator.cli.render import age
    from orchestrator.machine import isoformat

    until = f"; {one.default} at {isoformat(one.expires_ms)}" if one.expires_ms else ""
    say(f"{one.id}  {age(one.asked_ms):>6} ago  {one.agent}: {one.tool}{until}")
    arguments = json.dumps(one.arguments, ensure_ascii=False)
    if len(arguments) > _SHOWN_CHARS:
        arguments = f"{arguments[:_SHOWN_CHARS]}… ({len(arguments)} characters, --json has all)"
    say(f"    with      {arguments}")
    if one.reason:
        say(f"    because   {one.reason}")
    say(
        f"    for       {one.session}{f' ({one.title})' if one.title else ''}, at depth {one.depth} of {one.root}"
    )
    say(f"    digest    {one.digest}")
    if one.fault:
        say(f"NOT GENUINE: {one.fault}; it can only be denied", mark="    ", colour="red")


@click.command()
@session_argument("question", bare=False)
@click.argument("text")
@json_option
@stack_options
def reply(settings: Settings, *, question: str, text: str, as_json: bool) -> None:
    """Answer QUESTION (its id, as `orchestra questions` lists it) with TEXT (- reads standard input).

    QUESTION may also be a session, or @last, that asks one thing.
    """
    from orchestrator.cli.documents.sessions import Replied

    with open_client(settings) as client:
        if is_session_id(question):
            question = _asked_by(client, question)
        session = client.reply(question, text_of(text))
    print_answer(
        Replied(session=session, question=question), f"{session} will go on with it", as_json=as_json
    )


def _asked_by(client: Client, session: str) -> str:
    """Return the one open question of a session."""
    asked = [one.id for one in client.questions(session) if one.session == session]
    if len(asked) != 1:
        what = f"asks {len(asked)} things ({', '.join(asked)}): name one" if asked else "asks nothing"
        raise InputError(
            f"session {session} {what}; `orchestra questions {session}` lists what its tree asks"
        )
    return asked[0]


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
    """Say yes to APPROVAL (its id, as `orchestra questions` shows it): this call, with these arguments, once."""
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
    """Say no to APPROVAL (its id, as `orchestra questions` shows it). The agent gets the comment and goes on."""
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
    from orchestrator.cli.documents.sessions import Decided

    comment_text, done = text_of(comment), []
    try:
        with open_client(settings) as client:
            for name in names:
                one = (
                    client.approve(name, comment_text, digest=digest, by=by)
                    if approved
                    else client.deny(name, comment_text, by=by)
                )
                done.append(one)
                if not as_json:
                    verdict, colour = ("approved ", "green") if approved else ("denied ", "yellow")
                    say(f"{one.agent} in {one.session}: {one.tool}", mark=verdict, colour=colour)
    finally:
        # What was decided counts, also if the next one is refused.
        if as_json and done:
            print_json(Decided.of({"decided": done, "approved": approved, "comment": comment_text}))
