"""``orchestra audit``: show, search, verify and replay what was said."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import Exit, Refused
from orchestrator.cli.names import session_argument
from orchestrator.cli.options import SubCommands, json_option, search_options, stack_options
from orchestrator.cli.output import print_json, say, write_raw
from orchestrator.cli.render import progress_bar
from orchestrator.cli.report import report
from orchestrator.cli.stack import open_stack
from orchestrator.cli.trail import (
    describe,
    export_trail,
    messages_about,
    open_trail,
    print_conversation,
    prune,
    redact,
    transitions,
)
from orchestrator.display.figures import span
from orchestrator.display.text import counted

if TYPE_CHECKING:
    from orchestrator.audit import AuditReader, MessageRecord
    from orchestrator.config.settings import Settings
    from orchestrator.router.deadletters.again import Result


#: Messages that one look into the trail takes.
_PAGE = 500


@click.command("replay")
@session_argument("identifier", bare=False, metavar="[ID|CORRELATION-ID|SESSION]", required=False)
@search_options
@click.option("--text", help="Words that follow each other in what a message says.")
@click.option("--dry-run", is_flag=True, help="Only say what would become of each message.")
@click.option(
    "--rate", default=50.0, show_default=True, type=click.FloatRange(0), help="Messages a second; 0: any."
)
@click.option("--limit", default=1000, show_default=True, type=click.IntRange(1), help="Messages at most.")
@click.option(
    "--label",
    default="1",
    show_default=True,
    help="Name of this replay: with the same one a message is replayed once, so that a replay that was "
    "interrupted goes on; with another one, once more.",
)
@click.option(
    "--sign-unverified",
    is_flag=True,
    help="Sign one message as the operator, although the signature of its sender does not verify; the audit trail says so.",
)
@json_option
@stack_options
def replay(
    *,
    settings: Settings,
    identifier: str | None,
    dry_run: bool,
    rate: float,
    limit: int,
    label: str,
    sign_unverified: bool,
    as_json: bool,
    **conditions: Any,
) -> None:
    """Say messages once more, as new ones of the operator's that name the old; a task begins again as a root session.

    Give a message, a conversation, a session, or conditions as for `search`. Oldest first; what followed upon a task that is
    replayed is skipped. Each original is verified first, and refused if its sender is not known to have said it.
    Exit code 2: one was refused.
    """
    from orchestrator.router.deadletters.again import TrailReplay

    reader = open_trail(settings)
    records = _chosen(reader, settings, identifier, conditions, limit)
    alone = identifier is not None and len({record.message_id for record in records}) == 1
    if sign_unverified and not alone:
        raise click.UsageError("--sign-unverified takes one message-id: read the message first")
    results: list[Result] = []
    with (
        open_stack(settings, "audit-replay") as parts,
        progress_bar("replay", shown=len(records) > 1 and not alone and not as_json) as show,
    ):
        replays = TrailReplay(
            parts,
            reader,
            label=label,
            sign_unverified=sign_unverified,
            dry_run=dry_run,
            pause=_pause(rate),
        )
        for result in replays.run(records):
            results.append(result)
            if not alone and not as_json:
                say(_line(result, dry_run=dry_run))
            show("replay", len(results), len(records))
    refused = sum(result.how == "refused" for result in results)
    if alone and refused:
        raise Refused(results[0].reason)
    if as_json:
        from orchestrator.cli.documents.audit import ReplayedDocument, ReplayedMessages

        documents = tuple(
            ReplayedDocument.made(
                result.how,
                result.id,
                replays=result.record.message_id,
                done=result.done,
                rule=result.rule,
                reason=result.reason,
            )
            for result in results
        )
        print_json(documents[0] if alone else ReplayedMessages(replayed=documents))
    elif alone:
        say(_line(results[0], dry_run=dry_run))
    else:
        done = sum(result.done for result in results)
        skipped = sum(result.how == "skipped" for result in results)
        would = len(results) - refused - skipped
        first = f"{counted(would, 'message')} would be replayed" if dry_run else f"{done} replayed"
        say(f"{first}, {skipped} skipped, {refused} refused", err=True)
    if refused:
        click.get_current_context().exit(Exit.REFUSED)


def _chosen(
    reader: AuditReader, settings: Settings, identifier: str | None, conditions: dict[str, Any], limit: int
) -> list[MessageRecord]:
    """Return the messages that are to be replayed, oldest first."""
    asked = {name: value for name, value in conditions.items() if value not in (None, False)}
    if (identifier is None) == (not asked):
        raise click.UsageError("give an id, or conditions as for `orchestra audit search`, and not both")
    if identifier is not None:
        records = messages_about(reader, identifier, settings)
        if len(records) > limit:
            raise Refused(
                f"{identifier} stands for {counted(len(records), 'message')}; raise --limit to replay all of them"
            )
        return records
    found: list[MessageRecord] = []
    while len(found) < limit:
        page = reader.search(
            **asked, limit=min(_PAGE, limit - len(found)), before=found[-1].seq if found else None
        )
        found += page
        if not page:
            break
    return sorted(found, key=lambda record: (record.published_ms, record.seq))


def _pause(rate: float) -> Callable[[], None]:
    """Waits so long after each message that no more than ``rate`` of them are sent in a second."""
    due = time.monotonic()

    def pause() -> None:
        nonlocal due
        if rate:
            due = max(due, time.monotonic() - 1) + 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))

    return pause


def _line(result: Result, *, dry_run: bool) -> str:
    old = result.record.message_id or result.record.entry_id
    if result.how in ("refused", "skipped"):
        return f"{old} {result.how}: {result.reason}"
    what = "session" if result.how == "task" else "message"
    made = f"would be replayed as a new {what}" if dry_run else f"replayed as a new {what}"
    return f"{old} {made}: {result.id}"


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
    help="Print the whole body of one message, also if it was stored apart.",
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
        from orchestrator.audit.sequence import sequence_diagram

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
    records = open_trail(settings).search(text=text, limit=limit, before=before, **conditions)
    following = records[-1].seq if len(records) == limit else None
    if as_json:
        from orchestrator.cli.documents.audit import Messages

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
    from orchestrator.doctor.inspection import inspect

    inspection = inspect(settings, lambda: open_stack(settings, "audit-verify"), file)
    if as_json:
        from orchestrator.cli.documents.audit import AuditState

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
    """Return if the trail has the bytes of a message."""
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
