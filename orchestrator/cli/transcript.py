"""`orchestra transcript`: what was said in a session, turn by turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from orchestrator.cli.names import session_argument
from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json, say, write_raw
from orchestrator.cli.stack import open_stack

if TYPE_CHECKING:
    from orchestrator.audit import AuditReader
    from orchestrator.config.settings import Settings


@click.command()
@session_argument()
@click.option("--full", is_flag=True, help="Shorten nothing.")
@click.option(
    "--html",
    "as_html",
    is_flag=True,
    help="Print a page of its own, without a script; needs the extra `report` or `console`.",
)
@json_option
@stack_options
def transcript(settings: Settings, *, session: str, full: bool, as_html: bool, as_json: bool) -> None:
    """Show what was said in SESSION: each run with what it was given, each turn of the model with its text, thinking,
    tool calls, results, tokens and cost, and retries, delegations and approvals.

    It is read from the ledger, and from the audit trail once the ledger no longer has the session. Tokens are those of
    the request plus those of the answer.
    """
    from orchestrator.transcript.reading import read_transcript

    if as_html and as_json:
        raise click.UsageError("--html and --json exclude each other; give one of them")
    with open_stack(settings, "transcript") as parts:
        found = read_transcript(parts, session, _trail(parts.settings))
    if as_json:
        from orchestrator.cli.documents.transcript import TranscriptDocument

        print_json(TranscriptDocument.of(found))
        return
    if as_html:
        from orchestrator.cli.console import require_templates

        require_templates()
        from orchestrator.console.transcripts import page

        write_raw(page(found))
        return
    from orchestrator.transcript.rendering import Renderer

    for line in Renderer(full).lines(found):
        say(line)


def _trail(settings: Settings) -> AuditReader | None:
    """Return the audit trail, to read; None if there is none here."""
    from orchestrator.cli.trail import open_trail
    from orchestrator.errors import AuditError

    try:
        return open_trail(settings)
    except AuditError:
        return None
