"""`orchestra resume`, `fork`, `stop` and `delete`: what a user does to a session that is there."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import click

from orchestrator.cli.exit_codes import Exit
from orchestrator.cli.names import session_argument
from orchestrator.cli.options import (
    Command,
    VerbCommand,
    combined,
    given,
    json_option,
    stack_options,
    text_of,
    wait_options,
)
from orchestrator.cli.output import print_answer, print_json, say
from orchestrator.cli.stack import open_client
from orchestrator.cli.submit import print_submitted, retry_for_s, wait_and_print
from orchestrator.display.text import counted

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.client.waiting import Stopping
    from orchestrator.config.settings import Settings
    from orchestrator.ledger import Session, StopVerdict


@click.command()
@session_argument()
@click.argument("prompt")
@wait_options("Wait until the session ends again and print its answer.")
@click.option("--key", help="Idempotency key: the same key is the same prompt.")
@json_option
@stack_options
def resume(
    settings: Settings,
    *,
    session: str,
    prompt: str,
    wait: bool,
    key: str | None,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Give SESSION another PROMPT (- reads it from standard input). It runs once the session is not busy."""
    from orchestrator.cli.documents.sessions import Resumed

    with open_client(settings) as client:
        item = client.resume(session, text_of(prompt), key=key, retry_for_s=retry_for_s(wait=wait))
        if wait:
            wait_and_print(client, session, timeout_s=timeout_s, as_json=as_json, item=item)
        else:
            print_answer(Resumed(session=session, item=item), f"{session} will run with it", as_json=as_json)


@click.command(cls=VerbCommand, verb="fork", but=("prompt", "retry_for_s"))
@session_argument()
@click.argument("prompt", required=False)
@click.option(
    "--at", metavar="RUN", required=True, help="The run at which to fork: its id, or its number from 1 on."
)
@wait_options("Wait until the new session ends and print its answer.")
@json_option
@stack_options
def fork(
    settings: Settings,
    *,
    session: str,
    prompt: str | None,
    at: str,
    wait: bool,
    timeout_s: float | None,
    as_json: bool,
    **fields: Any,
) -> None:
    """Begin a new tree where RUN of SESSION began; SESSION stays as it is.

    The new session has the same agent, and its first run finds what RUN found: the saved state or the memory, and what it
    was given. PROMPT (- reads it from standard input) takes the place of the task or the words that RUN was given.
    """
    with open_client(settings) as client:
        handle = client.fork(
            session,
            at,
            prompt=None if prompt is None else text_of(prompt),
            retry_for_s=retry_for_s(wait=wait),
            **given(fields),
        )
        print_submitted(client, handle, wait=wait, timeout_s=timeout_s, as_json=as_json)


def _ending_options(*, reason: str) -> Callable[[Command], Command]:
    return combined(
        session_argument(),
        click.option(
            "--reason",
            default=reason,
            show_default=True,
            help="The reason that is reported to those who wait for it.",
        ),
        click.option(
            "--wait/--no-wait",
            default=True,
            show_default=True,
            help="Wait until it and those below it have ended, and say how.",
        ),
        json_option,
    )


@click.command()
@_ending_options(reason="stopped by a user")
@stack_options
def stop(settings: Settings, *, session: str, reason: str, wait: bool, as_json: bool) -> None:
    """Stop SESSION and, by its policy, everything below it; say what became of it.

    A queued run never starts. The agent of a running one is asked to stop, and killed if it does not within
    the grace period; the command waits for that and says which of the two happened. It also waits for those below, and
    says how many of them are still stopping.
    """
    with open_client(settings) as client:
        _end(client, session, client.stop, "stopped", reason=reason, wait=wait, as_json=as_json)


@click.command()
@_ending_options(reason="deleted by a user")
@stack_options
def delete(settings: Settings, *, session: str, reason: str, wait: bool, as_json: bool) -> None:
    """Delete SESSION and, by its policy, everything below it; a tombstone with its counts stays.

    A running agent is asked to stop first, as by `orchestra stop`.
    """
    with open_client(settings) as client:
        _end(client, session, client.delete, "deleted", reason=reason, wait=wait, as_json=as_json)


def _end(
    client: Client,
    session: str,
    end: Callable[[str, str], StopVerdict],
    done: str,
    *,
    reason: str,
    wait: bool,
    as_json: bool,
) -> None:
    from orchestrator.ledger import CLOSED

    stopping = client.stopping(session)
    client.step(stopping)
    verdict = end(session, reason)
    if not as_json:
        say(f"{session} {_at_once(verdict, done)}")
    ended, how = None, None
    try:
        if verdict.outcome == "asked" and wait:
            ended = _end_of(client, session)
            if ended is not None:
                how, in_words = _how_it_ended(client, ended, run=verdict.detail, asked=reason)
                in_words = f"is {ended.state.value}: {in_words}"
            else:
                in_words = f"has not ended yet; ask again with: orchestra why {session}"
            if not as_json:
                say(f"{session} {in_words}")
        # An agent that was done before it heard of it leaves its children at work.
        goes_on = ended is not None and ended.state not in CLOSED
        wait_below = wait and (verdict.outcome != "asked" or ended is not None)
        left = 0 if goes_on else _end_below(client, session, stopping, wait=wait_below, quiet=as_json)
    except KeyboardInterrupt:
        left = len(client.step(stopping) or ())
        say(
            f"Stopped waiting; the session was asked to stop, and will{still_stopping(left, before='; ')}",
            err=True,
        )
        sys.exit(Exit.INTERRUPTED)
    if as_json:
        from orchestrator.cli.documents.sessions import Ended

        now = ended or client.session(session)
        print_json(
            Ended(
                session=session,
                outcome=verdict.outcome,
                run="" if verdict.outcome == "over" else verdict.detail,
                below=verdict.below,
                stopping=left,
                state=now.state.value,
                reason=now.reason,
                agent_ended=how,
            )
        )


def _end_below(client: Client, session: str, stopping: Stopping, *, wait: bool, quiet: bool) -> int:
    """Return how many sessions below it are still at work; with ``wait``, once none is or none has ended for long
    enough.
    """
    left, give_up_at = -1, 0.0
    while left < 0 or (wait and left and time.monotonic() < give_up_at):
        below = client.step(stopping)
        if below is None or len(below) == left:
            continue
        if not quiet and (below or left > 0):
            say(still_stopping(len(below)) or "all sessions below it have ended")
        left, give_up_at = len(below), time.monotonic() + _longest_s(client)
    if wait and left and not quiet:
        say(f"they have not ended yet; look again with: orchestra tree {session}")
    return left


def still_stopping(left: int, *, before: str = "") -> str:
    """Return how many sessions below a stopped one are still at work, as text; empty for none."""
    return (
        f"{before}{counted(left, 'session')} below it {'is' if left == 1 else 'are'} still stopping"
        if left
        else ""
    )


def _at_once(verdict: StopVerdict, done: str) -> str:
    match verdict.outcome:
        case "ended":
            return f"is {done}; its queued run never starts" if verdict.detail else f"is {done}"
        case "asked":
            return "is running; its agent was asked to stop, and is ended by force if it does not"
        case "over":
            below = f"; {counted(verdict.below, 'session')} below it asked to stop" if verdict.below else ""
            return f"had ended already ({verdict.detail}){below}" if verdict.detail else "had ended already"
        case other:
            return other


def _longest_s(client: Client) -> float:
    """Return the time in which a session that was asked to stop has ended."""
    settings = client.settings
    # If the worker is dead, the reaper ends its run when the lease has passed.
    return settings.stop_grace_s + settings.heartbeat_s + 2 * (settings.lease_s + settings.sweep_interval_s)


def _end_of(client: Client, session: str) -> Session | None:
    """Return a session that was asked to stop, once it has ended; None if it has not, after all the time that it is
    given.
    """
    try:
        return client.wait(session, timeout_s=_longest_s(client))
    except TimeoutError:
        return None


def _how_it_ended(
    client: Client, session: Session, *, run: str, asked: str
) -> tuple[Literal["by itself", "by force", "lost", "done"], str]:
    """Return how the agent ended that was asked to stop in that run, as a word and as a sentence."""
    from orchestrator.ledger import BY_FORCE, WORKER_LOST, RunState, SessionState

    added = session.reason.removeprefix(asked)  # the user's own reason may have the same words
    if added.endswith(BY_FORCE):
        return "by force", "its agent did not stop in time and was killed"
    if added.endswith(WORKER_LOST):
        return "lost", "its worker was lost in the meantime"
    # A session that has something outstanding is stopped although its run completed.
    completed = any(r.id == run and r.state is RunState.COMPLETED for r in client.runs(session.id))
    if session.state is SessionState.FINISHED or completed:
        return "done", "its agent had finished before it learnt of it"
    return "by itself", "its agent stopped as it was asked to"
