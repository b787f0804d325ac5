"""Search and print of messages, for the commands on the audit trail."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from orchestrator.cli.exit_codes import Refused
from orchestrator.cli.output import say
from orchestrator.cli.stack import open_stack
from orchestrator.display.text import counted

if TYPE_CHECKING:
    from orchestrator.audit import AuditReader, MessageRecord, Node
    from orchestrator.config.settings import Settings


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
    from orchestrator.ids import is_session_id

    records = reader.find(identifier)
    if not records and is_session_id(identifier):
        with (
            suppress(ConfigurationError, ServerUnavailable, UnknownSession),
            open_stack(settings, "audit") as parts,
        ):
            records = reader.launched_by(parts.ledger.session(identifier).message)
    if not records:
        raise Refused(
            f"nothing in {settings.audit_name} is about {identifier!r}; `orchestra audit search` lists what is there"
        )
    return records
