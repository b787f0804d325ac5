"""``orchestra audit prune|redact|export|conversation``: take out of the audit trail, and carry it elsewhere."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import Refused
from orchestrator.cli.names import session_argument
from orchestrator.cli.options import json_option, period_options, stack_options, time_option
from orchestrator.cli.output import print_answer, print_json, say
from orchestrator.cli.stack import open_stack
from orchestrator.display.text import counted

if TYPE_CHECKING:
    from orchestrator.audit import AuditReader, MessageRecord, Node
    from orchestrator.audit.database import Database
    from orchestrator.config.settings import Settings
    from orchestrator.envelope.signature import Signer


@click.command("prune")
@time_option("--older-than", required=True, help="How long ago (90d, 12w) or a time (2026-01-31T08:00:00Z).")
@click.option("--dry-run", is_flag=True, help="Only say how many rows would be removed.")
@json_option
@stack_options
def prune(*, settings: Settings, older_than_ms: int, dry_run: bool, as_json: bool) -> None:
    """Remove the oldest part of the trail for good; a signed tombstone replaces it.

    Needs the operator's key, and a trail that is what was written, as the tombstone attests what it replaces. Keep
    what the ledger still has: the doctor cannot compare what was removed.
    """
    from orchestrator.audit import AuditStore, amendments
    from orchestrator.audit.heads import KeptHeads, proof_of
    from orchestrator.audit.verification import require_untouched
    from orchestrator.cli.documents.audit import PrunedTrail
    from orchestrator.keyring.store import KeyStore
    from orchestrator.machine import SystemClock

    database, signer = to_amend(settings)
    folder = KeyStore(settings.keys_dir, settings.signature_algorithm)
    with closing(AuditStore(settings.audit_database, read_only=True)) as store:
        require_untouched(store, proof_of(folder, settings), KeptHeads.of(settings))
    now_ms = SystemClock().now_ms()
    removed = amendments.prune(database, older_than_ms, signer, at_ms=now_ms, dry_run=dry_run)
    what = (
        f"{counted(removed['messages'], 'message')}, {counted(removed['dead_letters'], 'dead letter')} and "
        f"{counted(removed['transitions'], 'row')} of transitions"
    )
    print_answer(
        PrunedTrail(**removed, removed=not dry_run),
        f"{'would remove' if dry_run else 'removed'} {what} from {settings.audit_name}",
        as_json=as_json,
    )


@click.command("redact")
@click.argument("message_id", metavar="MESSAGE-ID")
@click.option("--reason", required=True, help="Why; the reason replaces the text.")
@json_option
@stack_options
def redact(*, settings: Settings, message_id: str, reason: str, as_json: bool) -> None:
    """Remove the text of one message from the trail for good; its row, its facts and the chain stay.

    Needs the operator's key. The streams and backups may have the text for longer.
    """
    from orchestrator.audit import amendments
    from orchestrator.cli.documents.audit import RedactedMessage
    from orchestrator.machine import SystemClock

    database, signer = to_amend(settings)
    rows = amendments.redact(database, message_id.lower(), reason, signer, at_ms=SystemClock().now_ms())
    if not rows:
        raise Refused(
            f"no message {message_id!r} with text is in {settings.audit_name}; `orchestra audit search` lists what is there"
        )
    print_answer(
        RedactedMessage(message_id=message_id.lower(), rows=rows, reason=reason),
        f"removed the text of {message_id} from {counted(rows, 'row')} of {settings.audit_name}",
        as_json=as_json,
    )


@click.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
@stack_options
def export_trail(*, settings: Settings, file: Path, as_json: bool) -> None:
    """Write the whole trail to FILE: JSON lines, compressed with zstd. `orchestra audit verify --file` checks it."""
    from orchestrator.audit.store import AuditStore
    from orchestrator.audit.transfer import export
    from orchestrator.cli.documents.audit import TransferredTrail

    messages = export(AuditStore(settings.audit_database, read_only=True), file)
    document = TransferredTrail(file=str(file), messages=messages)
    print_answer(document, f"{file}: {counted(messages, 'message')}", as_json=as_json)


@click.command("transitions")
@session_argument(required=False)
@click.option(
    "--kind",
    type=click.Choice(["session", "run", "callback", "item", "step", "budget", "approval"]),
    help="Only changes of such things.",
)
@period_options
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="Changes of a page.")
@click.option("--before", help="The next page: what the page before says.")
@json_option
@stack_options
def transitions(
    *,
    settings: Settings,
    session: str | None,
    as_json: bool,
    **conditions: Any,
) -> None:
    """List what the ledger changed, newest first: sessions, runs, callbacks, items, steps, budgets."""
    from orchestrator.audit.store import AuditStore, Changes
    from orchestrator.machine import isoformat

    changes = Changes(AuditStore(settings.audit_database, read_only=True))
    try:
        page, following = changes.page(session=session, **conditions)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--before") from error
    if as_json:
        from orchestrator.cli.documents.audit import Transitions

        print_json(Transitions.of({"transitions": page, "next": following}))
        return
    for change in page:
        name = "" if change.id == "-" else f" {change.id}"
        # The session that was asked for needs no mention.
        whose = "" if change.session == session else f" {'of ' if name else ''}{change.session}"
        detail = f" ({change.detail})" if change.detail else ""
        what = f"{change.kind}{name}{whose}"
        say(f"{isoformat(change.at_ms)}  {what}: {change.state}{detail}  by {change.by}")
    if not page:
        say("nothing found", err=True)
    if following is not None:
        say(f"older ones: --before {following}", err=True)


def to_amend(settings: Settings) -> tuple[Database, Signer]:
    """Return the audit database, to write to it, and the operator who signs that."""
    from orchestrator.agents.registry import OPERATOR
    from orchestrator.audit.database import Database
    from orchestrator.keyring.store import KeyStore

    folder = KeyStore(settings.keys_dir, settings.signature_algorithm)
    if folder.current(OPERATOR) is None:
        raise Refused(
            f"the operator's key is not in {settings.keys_dir}; run this where it is, or bring it with "
            "`orchestra keys export operator` and `orchestra keys import`"
        )
    if isinstance(settings.audit_database, Path) and not settings.audit_database.exists():
        raise Refused(f"no audit trail at {settings.audit_name}; a writer begins one")
    return Database(settings.audit_database), folder.signer(OPERATOR)


def open_trail(settings: Settings) -> AuditReader:
    """Return the audit trail, to read.

    Raises:
        AuditError: there is none, or it cannot be read.
    """
    from orchestrator.audit import AuditReader, AuditStore

    return AuditReader(AuditStore(settings.audit_database, read_only=True))


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
    """Return a message in one line."""
    task = f" [{record.task_id}]" if record.task_id else ""
    dead = f"  DEAD {record.dead}" if record.dead else ""
    again = f" (attempt {record.attempt})" if record.attempt > 1 else ""
    who = f"{record.sender or '?'} → {record.recipient or '?'}"
    status = f" {record.status}" if record.status else ""
    return f"{record.type} {who}{task} {record.priority}{status}{again}{dead}"


def messages_about(reader: AuditReader, identifier: str, settings: Settings) -> list[MessageRecord]:
    """Return the messages that an id names, oldest first.

    The trail has a session whose task an external program gave under that program's task-id: then the ledger, if it
    answers, knows which message launched the session.

    Raises:
        Refused: the trail has nothing about it.
    """
    from orchestrator.errors import ConfigurationError, ServerUnavailable, UnknownSession

    def launch() -> str:
        away = suppress(ConfigurationError, ServerUnavailable, UnknownSession)
        with away, open_stack(settings, "audit") as parts:
            return parts.ledger.session(identifier).message
        return ""

    records = reader.about(identifier, launch)
    if not records:
        raise Refused(
            f"nothing in {settings.audit_name} is about {identifier!r}; `orchestra audit search` lists what is there"
        )
    return records
