"""`orchestra program raise`, `orchestra program delegate` and `orchestra program ask`: for programs that an agent started.

They speak for the session of that agent, with the socket and the token in their environment, for as long as its run goes
on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import Failed, NotYet
from orchestrator.cli.options import VerbCommand, given, json_option, timeout_option, wait_options
from orchestrator.cli.output import print_answer, print_json, write_raw

if TYPE_CHECKING:
    from orchestrator.client.current import RemoteSession


def _session() -> RemoteSession:
    from orchestrator.client.current import RemoteSession

    return RemoteSession.from_environment()


@click.command("raise", cls=VerbCommand, verb="raise_callback")
@wait_options("Wait for the reply and print it.")
@json_option
def raise_(*, wait: bool, timeout_s: float | None, as_json: bool, **fields: Any) -> None:
    """Tell the session's caller of something with MESSAGE (- reads standard input).

    Without --wait the reply, if one is given, resumes the session after its run. Nothing is printed and the exit code
    is 0 where nobody hears of the session.
    """
    asked = given(fields)
    kind = asked.pop("kind", "query")
    reply = _session().raise_callback(callback_type=kind, **asked, wait=wait, timeout_s=timeout_s)
    _print_reply(reply, as_json=as_json)


@click.command("delegate", cls=VerbCommand, verb="delegate")
@wait_options("Wait for the end of the child and print its answer.")
@json_option
def launch(*, wait: bool, timeout_s: float | None, as_json: bool, **fields: Any) -> None:
    """Launch a session of AGENT with TASK (- reads standard input) and print its id.

    Without --wait its end resumes the session after its run. With --wait: print its answer and exit with 0, or print
    the failure and exit with 1; with 3 if it has not ended in time.
    """
    from orchestrator.cli.documents.sessions import Delegated

    session = _session()
    child = session.delegate(**given(fields))
    if not wait:
        print_answer(Delegated(session=child), child, as_json=as_json)
        return
    ended = session.end_of(child, timeout_s=timeout_s)
    if as_json:
        print_json(
            Delegated(
                session=child,
                status=ended["status"] if ended else None,
                text=ended["text"] if ended else None,
            )
        )
    if ended is None:
        raise NotYet(f"session {child} has not ended after {timeout_s:g} s; its end comes as a callback")
    if ended["status"] == "failed":
        raise Failed(f"session {child} failed: {ended['text']}")
    if not as_json:
        write_raw(ended["text"])


@click.command("ask", cls=VerbCommand, verb="ask", but=("timeout_s",))
@timeout_option
@json_option
def question(*, timeout_s: float | None, as_json: bool, **fields: Any) -> None:
    """Ask the session's caller MESSAGE (- reads standard input), wait for the reply and print it.

    Exits with 3 if no reply comes. A question without a reply stays open, and its reply resumes the session.
    """
    _print_reply(_session().ask(timeout_s=timeout_s, **given(fields)), as_json=as_json)


def _print_reply(reply: str | None, *, as_json: bool) -> None:

    if as_json:
        from orchestrator.cli.documents.sessions import Raised

        print_json(Raised(reply=reply))
    elif reply is not None:
        write_raw(reply)
