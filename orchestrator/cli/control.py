"""`orchestra resume`, `stop` and `delete`: what a user does to a session that is there."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import json_option, print_json, stack_options
from orchestrator.cli.submit import timeout_option, wait_and_print

if TYPE_CHECKING:
    from orchestrator.ledger import StopVerdict
    from orchestrator.settings import Settings


@click.command()
@click.argument("session")
@click.argument("prompt")
@click.option("--wait", is_flag=True, help="Wait until the session is over again and print its answer.")
@click.option("--key", help="Idempotency key: the same key is the same prompt.")
@timeout_option
@json_option
@stack_options
def resume(
    settings: Settings,
    *,
    session: str,
    prompt: str,
    wait: bool,
    key: str | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Give SESSION a further PROMPT (- reads it from standard input). It runs once the session is not busy."""
    from orchestrator.client import Client

    with Client(settings) as client:
        item = client.resume(session, sys.stdin.read() if prompt == "-" else prompt, key=key)
        if wait:
            wait_and_print(client, session, timeout_s=timeout, as_json=as_json, item=item)
        elif as_json:
            print_json({"session": session, "prompt": item})
        else:
            click.echo(f"{session} will run with it")


@click.command()
@click.argument("session")
@click.option(
    "--reason", default="stopped by a user", show_default=True, help="What to tell whoever waits for it."
)
@json_option
@stack_options
def stop(settings: Settings, *, session: str, reason: str, as_json: bool) -> None:
    """Stop SESSION and, by its policy, everything below it; say whether it ended or was asked to."""
    from orchestrator.client import Client

    with Client(settings) as client:
        _say(session, client.stop(session, reason), "is stopped", as_json=as_json)


@click.command()
@click.argument("session")
@click.option(
    "--reason", default="deleted by a user", show_default=True, help="What to tell whoever waits for it."
)
@json_option
@stack_options
def delete(settings: Settings, *, session: str, reason: str, as_json: bool) -> None:
    """Delete SESSION and, by its policy, everything below it; a tombstone with its counts stays."""
    from orchestrator.client import Client

    with Client(settings) as client:
        _say(session, client.delete(session, reason), "is deleted", as_json=as_json)


def _say(session: str, verdict: StopVerdict, ended: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"session": session, "outcome": verdict.outcome, "detail": verdict.detail})
        return
    words = {
        "ended": ended,
        "asked": "is running; its agent was asked to stop, and is ended by force if it does not",
        "over": f"was over already ({verdict.detail})" if verdict.detail else "was over already",
    }
    click.echo(f"{session} {words.get(verdict.outcome, verdict.outcome)}")
