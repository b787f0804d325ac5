"""``orchestra audit``: run the writer; show, search and verify what was said."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from orchestrator.cli.stack import open_stack
from orchestrator.cli.trail import export_trail, import_trail, prune, redact, transitions
from orchestrator.display.figures import span
from orchestrator.display.text import counted

if TYPE_CHECKING:
    import redis

    from orchestrator.audit import AuditWriter, MessageRecord
    from orchestrator.config.settings import Settings


_METRICS: Final = """\
# HELP orchestra_audit_backlog_entries Published entries that are not in the audit trail yet.
# TYPE orchestra_audit_backlog_entries gauge
orchestra_audit_backlog_entries{{kind="messages"}} {messages}
orchestra_audit_backlog_entries{{kind="steps"}} {steps}
orchestra_audit_backlog_entries{{kind="dead_letters"}} {dead_letters}
# HELP orchestra_audit_backlog_oldest_seconds Age of the oldest of them; 0: there are none.
# TYPE orchestra_audit_backlog_oldest_seconds gauge
orchestra_audit_backlog_oldest_seconds {seconds}"""


@click.group("audit", cls=SubCommands)
def audit() -> None:
    """Search, show and verify the audit trail; run its writer."""


for command in (prune, redact, export_trail, import_trail, transitions, report, replay):
    audit.add_command(command)


@audit.command("writer")
@stack_options
def writer(settings: Settings) -> None:
    """Run one audit writer: everything that is published goes into the audit database."""
    from orchestrator.runtime.service import serve

    def make(client: redis.Redis, settings: Settings) -> AuditWriter:
        from orchestrator.audit import build_writer
        from orchestrator.bootstrap import build_container
        from orchestrator.streams import consumer_name

        return build_writer(build_container(client, settings), consumer=consumer_name("audit"))

    serve("audit", make, settings, background=True)


@audit.command("backlog")
@click.option("--prometheus", is_flag=True, help="Print metrics in the text format of Prometheus.")
@click.option(
    "--max-age",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Exit code 1 if the oldest entry is older than that.",
)
@json_option
@stack_options
def backlog(*, settings: Settings, prometheus: bool, max_age: float | None, as_json: bool) -> None:
    """Say how many published entries are not in the audit trail yet, and how old the oldest is.

    Only Redis is asked, so the answer comes while the audit database is away.
    """
    from orchestrator.audit.backlog import backlog as measure
    from orchestrator.cli.documents.audit import AuditBacklog

    with open_stack(settings, "audit-backlog") as parts:
        found = measure(parts.redis, settings.shards)
    if as_json:
        print_json(AuditBacklog.of(found))
    elif prometheus:
        say(_METRICS.format(**vars(found), seconds=found.oldest_ms / 1000), lines=True)
    elif not found.entries:
        say("everything published is in the audit trail")
    else:
        number = counted(found.entries, "entry is", "entries are")
        say(f"{number} not in the audit trail yet, the oldest for {span(found.oldest_ms)}")
        kinds = (
            counted(found.messages, "message"),
            counted(found.steps, "step of the ledger", "steps of the ledger"),
        )
        say(f"{kinds[0]}, {kinds[1]}, {counted(found.dead_letters, 'dead letter')}")
    if max_age is not None and found.oldest_ms > max_age * 1000:
        click.get_current_context().exit(Exit.NO)


@audit.command("show")
@session_argument("identifier", bare=False, metavar="ID|CORRELATION-ID|SESSION")
@click.option(
    "--xml", is_flag=True, help="Print the XML: of one message byte for byte, of more below each message."
)
@click.option(
    "--body", is_flag=True, help="Print the body of one message whole, also where it travelled apart."
)
@click.option("--mermaid", is_flag=True, help="Print a sequence diagram as Mermaid text.")
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
    body: bool,
    mermaid: bool,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Show a message, or a conversation or a session's part of it as a tree."""
    from orchestrator.cli.documents.messages import FullMessages

    reader = open_trail(settings)
    records = messages_about(reader, identifier, settings)
    if svg is not None:
        from orchestrator.audit.sequence import sequence_svg, svg_text

        svg.write_text(svg_text(sequence_svg(records)), encoding="utf-8")
        say(f"wrote {svg}", err=True)
        return
    alone = len({record.message_id for record in records}) == 1
    if (xml and alone) or body:
        _require_text(records[0])
    if body:
        if not alone:
            raise Refused(f"{identifier} stands for {counted(len(records), 'message')}; give one message-id")
        write_raw(reader.body(records[0]), newline=False)
        return
    if xml and alone:
        write_raw(records[0].xml, newline=False)
        return
    if mermaid:
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
    from orchestrator.cli.documents.messages import Messages

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

    found = inspect(settings) if file is None else inspect_file(settings, file)
    if as_json:
        print_json(AuditState.of(found))
    else:
        for item in found.breaks:
            say(f"broken: {item.table} row {item.seq}: {item.what}")
        if found.lost:
            say(
                f"broken: {counted(found.lost, 'entry', 'entries')} published and never written: {found.where}"
            )
        state = "intact" if found.intact else "broken"
        say(f"{found.file}: {counted(found.messages, 'message')}, the trail is {state}")
        if found.unreached is not None:
            say(f"not compared with what was published: {found.unreached}", err=True)
        else:
            since = f", the oldest for {span(found.behind_ms)}" if found.behind_ms else ""
            waiting = f"still to be written {found.waiting}{since}"
            say(f"published {found.published}, written {found.written}, {waiting}")
            say(f"steps of the ledger: published {found.steps_published}, written {found.steps}")
    if not found.intact:
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
    from orchestrator.cli.documents.messages import MessageDocument

    for name, value in MessageDocument.of(record).model_dump().items():
        if value not in ("", 0, None):
            say(f"{name:14} {value}")
    say()
    say(record.xml.decode("utf-8", "replace") or REMOVED, lines=True)
