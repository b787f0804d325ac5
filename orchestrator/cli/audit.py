"""``orchestra audit``: show, search and verify what was said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.conversation import (
    describe,
    messages_about,
    open_trail,
    print_conversation,
)
from orchestrator.cli.exit_codes import Exit, Refused
from orchestrator.cli.filters import search_options
from orchestrator.cli.names import session_argument
from orchestrator.cli.options import SubCommands, json_option, stack_options
from orchestrator.cli.output import print_json, say, write_raw
from orchestrator.cli.replay import replay
from orchestrator.cli.report import report
from orchestrator.cli.trail import export_trail, prune, redact, transitions
from orchestrator.display.figures import span
from orchestrator.display.text import counted

if TYPE_CHECKING:
    from orchestrator.audit import MessageRecord
    from orchestrator.config.settings import Settings


@click.group("audit", cls=SubCommands)
def audit() -> None:
    """Search, show and verify the audit trail."""


audit.renamed = {"writer": "service audit"}


for command in (prune, redact, export_trail, transitions, report, replay):
    audit.add_command(command)


@audit.command("show")
@session_argument("identifier", bare=False, metavar="ID|CORRELATION-ID|SESSION")
@click.option(
    "--xml", is_flag=True, help="Print the XML: of one message byte for byte, of more below each message."
)
@click.option(
    "--body",
    "form",
    flag_value="body",
    help="Print the body of one message whole, also where it travelled apart.",
)
@click.option(
    "--conversation", is_flag=True, help="Show everything that was said in its conversation, as a tree."
)
@click.option("--mermaid", "form", flag_value="mermaid", help="Print a sequence diagram as Mermaid text.")
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a sequence diagram as SVG to FILE.",
)
@json_option
@stack_options
def show(
    *,
    settings: Settings,
    identifier: str,
    xml: bool,
    conversation: bool,
    form: str | None,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Show a message, or a conversation or a session's part of it as a tree."""
    from orchestrator.cli.documents.audit import FullMessages

    reader = open_trail(settings)
    records = messages_about(reader, identifier, settings)
    if conversation:
        records = reader.conversation(records[0].correlation_id)
    if svg is not None:
        from orchestrator.audit.sequence import sequence_svg, svg_text

        svg.write_text(svg_text(sequence_svg(records)), encoding="utf-8")
        say(f"wrote {svg}", err=True)
        return
    alone = len({record.message_id for record in records}) == 1
    if (xml and alone) or form == "body":
        _require_text(records[0])
    if form == "body":
        if not alone:
            raise Refused(f"{identifier} stands for {counted(len(records), 'message')}; give one message-id")
        write_raw(reader.body(records[0]), newline=False)
        return
    if xml and alone:
        write_raw(records[0].xml, newline=False)
        return
    if form == "mermaid":
        from orchestrator.audit.mermaid import sequence_diagram

        say(sequence_diagram(records), lines=True)
    elif as_json:
        print_json(FullMessages.of({"messages": records}))
    elif alone:
        for record in records:
            _print_message(record)
    else:
        print_conversation(records, xml=xml)


@audit.command("search")
@click.argument("text", required=False)
@search_options
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="Messages of a page.")
@click.option("--before", type=click.IntRange(1), help="The next page: what the page before says.")
@json_option
@stack_options
def search(
    *,
    settings: Settings,
    text: str | None,
    limit: int,
    before: int | None,
    as_json: bool,
    **conditions: Any,
) -> None:
    """Find messages, newest first; the words of TEXT are looked for, one after the other, in what messages say."""
    from orchestrator.cli.documents.audit import Messages

    records = open_trail(settings).search(text=text, limit=limit, before=before, **conditions)
    following = records[-1].seq if len(records) == limit else None
    if as_json:
        print_json(Messages.of({"messages": records, "next": following}))
        return
    for record in records:
        say(f"{record.published}  {describe(record)}  {record.message_id or record.entry_id}")
    if not records:
        say("nothing found", err=True)
    if following is not None:
        say(f"older ones: --before {following}", err=True)


@audit.command("verify")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An exported trail; no server is asked.",
)
@json_option
@stack_options
def verify(*, settings: Settings, file: Path | None, as_json: bool) -> None:
    """Check chain, signed heads and signatures, and that all that was published is there.

    Exit code 1: something was changed, or is missing for good; 2: the trail cannot be read.
    """
    from orchestrator.cli.documents.audit import AuditState
    from orchestrator.cli.inspection import inspect, inspect_file

    inspection = inspect(settings) if file is None else inspect_file(settings, file)
    if as_json:
        print_json(AuditState.of(inspection))
    else:
        for item in inspection.breaks:
            say(f"broken: {item.table} row {item.seq}: {item.what}")
        if inspection.lost:
            say(
                f"broken: {counted(inspection.lost, 'entry', 'entries')} published and never written: {inspection.where}"
            )
        state = "intact" if inspection.intact else "broken"
        say(f"{inspection.file}: {counted(inspection.messages, 'message')}, the trail is {state}")
        if inspection.unreached is not None:
            say(f"not compared with what was published: {inspection.unreached}", err=True)
        else:
            since = f", the oldest for {span(inspection.behind_ms)}" if inspection.behind_ms else ""
            waiting = f"still to be written {inspection.waiting}{since}"
            say(f"published {inspection.published}, written {inspection.written}, {waiting}")
            say(f"steps of the ledger: published {inspection.steps_published}, written {inspection.steps}")
    if not inspection.intact:
        click.get_current_context().exit(Exit.NO)


def _require_text(record: MessageRecord) -> None:
    """Return if the trail has the octets of a message."""
    if not record.xml:
        raise Refused(
            f"the operator has removed the text of {record.message_id} from the trail; `orchestra audit show` without "
            "--xml and --body shows what is known of it"
        )


def _print_message(record: MessageRecord) -> None:
    from orchestrator.audit.text import REMOVED
    from orchestrator.cli.documents.audit import MessageDocument

    for name, value in MessageDocument.of(record).model_dump().items():
        if value not in ("", 0, None):
            say(f"{name:14} {value}")
    say()
    say(record.xml.decode("utf-8", "replace") or REMOVED, lines=True)
