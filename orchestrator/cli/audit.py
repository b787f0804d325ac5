"""``orchestra audit``: run the writer; show, search and verify what was said."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.backlog import backlog
from orchestrator.cli.names import session_argument, session_option
from orchestrator.cli.options import SubCommands, json_option, known_type, stack_options
from orchestrator.cli.output import print_json, say, write_raw
from orchestrator.cli.replay import replay_command
from orchestrator.cli.report import report
from orchestrator.cli.trail import export_trail, import_trail, prune, redact, transitions
from orchestrator.display.figures import span
from orchestrator.display.text import counted

if TYPE_CHECKING:
    import redis

    from orchestrator.audit import AuditReader, AuditStore, AuditWriter, MessageRecord, Node
    from orchestrator.config.settings import Settings

#: What a message can have come to.
OUTCOMES = ("dead", "success", "partial-success", "failed", "completed", "in-progress", "blocked")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@click.group("audit", cls=SubCommands)
def audit() -> None:
    """Search, show and verify the audit trail; run its writer."""


for command in (prune, redact, export_trail, import_trail, transitions, backlog, report):
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
    from orchestrator.cli.documents import FullMessages

    reader = _reader(settings)
    records = messages_about(reader, identifier, settings)
    if not records:
        raise click.ClickException(nothing_about(identifier, settings))
    if svg is not None:
        from orchestrator.audit.sequence import sequence_svg, svg_text

        svg.write_text(svg_text(sequence_svg(records)), encoding="utf-8")
        say(f"wrote {svg}", err=True)
        return
    alone = len({record.message_id for record in records}) == 1
    if body:
        if not alone:
            raise click.ClickException(
                f"{identifier} stands for {counted(len(records), 'message')}; give one message-id"
            )
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


_SEARCH_OPTIONS = (
    click.option("--type", "message_type", callback=known_type, help="Message type."),
    click.option("--sender", help="Name of the sender."),
    click.option("--recipient", help="Name of the recipient."),
    click.option("--priority", help="Priority of the stream."),
    click.option("--correlation", help="Correlation-id of a conversation."),
    session_option("--task", "--session", "task_id", help="Task-id or session id."),
    click.option("--message", "message_id", help="Message-id."),
    click.option("--attempt", type=click.IntRange(1), help="Number of the attempt to deliver it."),
    click.option("--rule", help="Rule by which it became a dead letter."),
    click.option(
        "--outcome",
        type=click.Choice(OUTCOMES),
        help="dead: it became a dead letter; else how the task stands, by a message that did not.",
    ),
    click.option("--since", help="How long ago (90s, 15m, 2h, 7d) or a time (2026-01-31T08:00:00Z)."),
    click.option("--until", help="The same, for the end of the time searched."),
    click.option("--dead", is_flag=True, help="Only messages that became dead letters."),
)


def search_options(command: Callable[..., None]) -> Callable[..., None]:
    """The conditions of a search, as the reader of the trail names them, `since` and `until` aside."""
    for option in reversed(_SEARCH_OPTIONS):
        command = option(command)
    return command


audit.add_command(replay_command(search_options))


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
    since: str | None,
    until: str | None,
    limit: int,
    before: int | None,
    as_json: bool,
    **conditions: Any,
) -> None:
    """Find messages, newest first; the words of TEXT are looked for, one after the other, in what messages say."""
    from orchestrator.cli.documents import Messages

    records = _reader(settings).search(
        text=text,
        since_ms=parse_time(since),
        until_ms=parse_time(until),
        limit=limit,
        before=before,
        **conditions,
    )
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

    Exit code 1: something was changed, or is missing for good.
    """
    from orchestrator.cli.documents import AuditState
    from orchestrator.cli.inspection import inspect, inspect_file

    found = inspect(settings) if file is None else inspect_file(settings, file)
    name = settings.audit_name if file is None else str(file)
    if as_json:
        print_json(
            AuditState.of(
                {
                    "file": name,
                    "intact": found.intact,
                    "messages": found.messages,
                    "published": found.published,
                    "steps": found.steps,
                    "steps_published": found.steps_published,
                    "not_written_yet": found.waiting,
                    "behind_ms": found.behind_ms,
                    "missing": found.lost,
                    "breaks": found.breaks,
                }
            )
        )
    else:
        for item in found.breaks:
            say(f"broken: {item.table} row {item.seq}: {item.what}")
        if found.lost:
            say(
                f"broken: {counted(found.lost, 'entry', 'entries')} published and never written: {found.where}"
            )
        state = "intact" if found.intact else "broken"
        say(f"{name}: {counted(found.messages, 'message')}, the trail is {state}")
        if found.unreached is not None:
            say(f"not compared with what was published: {found.unreached}", err=True)
        else:
            since = f", the oldest for {span(found.behind_ms)}" if found.behind_ms else ""
            waiting = f"still to be written {found.waiting}{since}"
            say(f"published {found.published}, written {found.written}, {waiting}")
            say(f"steps of the ledger: published {found.steps_published}, written {found.steps}")
    if not found.intact:
        click.get_current_context().exit(1)


def _store(settings: Settings) -> AuditStore:
    from orchestrator.audit import AuditStore

    return AuditStore(settings.audit_database, read_only=True)


def _reader(settings: Settings) -> AuditReader:
    from orchestrator.audit import AuditReader

    return AuditReader(_store(settings))


def print_conversation(records: list[MessageRecord], *, xml: bool = False) -> None:
    """Print messages as a tree by their chains, with their XML if wanted."""
    from orchestrator.audit import trees

    count = len({record.message_id or record.entry_id for record in records})
    say(f"conversation {records[0].correlation_id}, {counted(count, 'message')}")
    for root in trees(records):
        _print_node(root, xml=xml)


def _print_node(top: Node, *, xml: bool) -> None:
    from orchestrator.audit.text import indented

    # A stack of our own: a conversation may be deeper than Python's.
    waiting = [(top, "", "")]
    while waiting:
        node, head, indent = waiting.pop()
        say(f"{node.record.published}  {head}{describe(node.record)}")
        last = len(node.replies) - 1
        if xml:
            margin = indent + ("│ " if node.replies else "  ")
            for line in indented(node.record.xml):
                say(f"{'':{len(node.record.published)}}  {margin}{line}")
        waiting += [
            (reply, indent + ("└ " if number == last else "├ "), indent + ("  " if number == last else "│ "))
            for number, reply in reversed(list(enumerate(node.replies)))
        ]


def describe(record: MessageRecord) -> str:
    """A message in one line."""
    task = f" [{record.task_id}]" if record.task_id else ""
    dead = f"  DEAD {record.dead}" if record.dead else ""
    again = f" (attempt {record.attempt})" if record.attempt > 1 else ""
    who = f"{record.sender or '?'} → {record.recipient or '?'}"
    status = f" {record.status}" if record.status else ""
    return f"{record.type} {who}{task} {record.priority}{status}{again}{dead}"


def messages_about(reader: AuditReader, identifier: str, settings: Settings) -> list[MessageRecord]:
    """The messages that an id stands for, oldest first.

    A session whose task an external program gave has that program's task-id in the trail: the ledger, where it
    answers, knows which message it was.
    """
    from orchestrator.config.stack import resolve_redis_url
    from orchestrator.errors import ConfigurationError, ServerUnavailable, UnknownSession
    from orchestrator.ids import is_session_id
    from orchestrator.ledger import Ledger
    from orchestrator.redisdb.client import connect

    records = reader.find(identifier)
    if records or not is_session_id(identifier):
        return records
    try:
        client = connect(resolve_redis_url(settings), name="orchestra-audit")
        return reader.launched_by(Ledger(client).session(identifier).message)
    except (ConfigurationError, ServerUnavailable, UnknownSession):
        return []


def nothing_about(identifier: str, settings: Settings) -> str:
    """What to say where the audit trail knows nothing of an id."""
    return f"nothing in {settings.audit_name} is about {identifier!r}; `orchestra audit search` lists what is there"


def _print_message(record: MessageRecord) -> None:
    from orchestrator.cli.documents.messages import MessageDocument

    for name, value in MessageDocument.of(record).model_dump().items():
        if value not in ("", 0, None):
            say(f"{name:14} {value}")
    say()
    say(record.xml.decode("utf-8", "replace"), lines=True)


def parse_time(text: str | None) -> int | None:
    """Milliseconds since the epoch of a time, or of so long ago.

    Raises:
        click.BadParameter: the text is neither.
    """
    if text is None:
        return None
    if text[-1:] in _UNITS and text[:-1].isascii() and text[:-1].isdigit():
        when = datetime.now(UTC) - timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]])
    else:
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            raise click.BadParameter(
                f"{text!r} is neither how long ago (90s, 15m, 2h, 7d) nor a time (2026-01-31T08:00:00Z)"
            ) from None
        if when.tzinfo is None:
            when = when.astimezone()
    return round(when.timestamp() * 1000)
