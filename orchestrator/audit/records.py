"""Records of a message and of a dead letter in the audit trail, as values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

from orchestrator.audit.facts import NOTHING, FactsReader
from orchestrator.audit.transitions import ms_of
from orchestrator.machine import isoformat
from orchestrator.streams import Entry

_READER: Final = FactsReader()


@dataclass(frozen=True, kw_only=True)
class MessageRecord:
    """A published entry; fields that only a valid envelope has are empty in others."""

    #: Its stream: `shard/type/priority`.
    stream: str
    #: The id of its entry in the stream.
    entry_id: str
    #: Its id.
    message_id: str
    #: Its type.
    type: str
    #: The priority of its stream.
    priority: str
    #: The agent that sent it.
    sender: str
    #: The agent that it is for.
    recipient: str
    #: Its conversation.
    correlation_id: str
    #: The message that it follows upon; else empty.
    parent_id: str
    #: The task or session that it is about; else empty.
    task_id: str
    #: When its sender says it was made.
    sent: str
    #: When it entered its stream.
    published_ms: int
    #: Which attempt to deliver it this is, from 1.
    attempt: int
    xml: bytes
    #: The SHA-256 of its bytes.
    sha256: str
    #: When the audit trail took it.
    received_ms: int
    #: Its number in the audit trail.
    seq: int = 0
    #: The hash that chains it to the one before.
    chain: str = ""
    #: What makes the commitment of it, and the commitment that the chain covers; see `store.commit`.
    salt: str = ""
    commitment: str = ""
    #: How the task stands, by a status-update or a task-completion; else empty.
    status: str = ""
    #: SHA-256 of its body, where that travelled apart and is kept (`--body` prints it); else empty.
    body: str = ""
    body_octets: bytes = field(default=b"", repr=False)
    #: Why it is a dead letter, `rule: reason`; empty: it is not a dead letter.
    dead: str = ""

    @property
    def published(self) -> str:
        """When it entered its stream, ISO 8601."""
        return isoformat(self.published_ms)


@dataclass(frozen=True, kw_only=True)
class DeadRecord:
    """A dead letter, as the audit trail keeps it."""

    dead_id: str
    stream: str
    entry_id: str
    rule: str
    reason: str
    attempts: int
    at_ms: int
    received_ms: int


def read_entry(
    entry: Entry, *, received_ms: int, reader: FactsReader = _READER, unread: bool = False
) -> MessageRecord:
    """Return the record of an entry: its bytes whatever they are, and the facts that ``reader`` finds in them.

    ``unread``: nothing is parsed, and it has no facts.
    """
    data = reader.kept(entry.data or b"")
    facts = NOTHING if unread else reader.read(data)
    return MessageRecord(
        stream=str(entry.stream),
        entry_id=entry.id,
        message_id=facts.message_id,
        type=entry.stream.type,
        priority=entry.stream.priority,
        sender=facts.sender,
        recipient=facts.recipient,
        correlation_id=facts.correlation_id,
        parent_id=facts.parent_id,
        task_id=facts.task_id,
        sent=facts.sent,
        published_ms=ms_of(entry.id),
        attempt=_count(entry.extra.get("attempt", "")),
        xml=data,
        sha256=hashlib.sha256(data).hexdigest(),
        received_ms=received_ms,
        status=facts.status,
        body=hashlib.sha256(facts.body).hexdigest() if facts.body else "",
        body_octets=facts.body,
    )


def read_dead(entry: Entry, *, received_ms: int) -> DeadRecord:
    """Return the record of an entry of a stream of dead letters."""
    # PostgreSQL has no text with a NUL, which anybody may append.
    fields = {name: value.replace("\0", "\ufffd") for name, value in entry.extra.items()}
    return DeadRecord(
        dead_id=f"{entry.stream.shard:02x}-{entry.id}",
        stream=fields.get("stream", ""),
        entry_id=fields.get("entry", ""),
        rule=fields.get("rule", ""),
        reason=fields.get("reason", ""),
        attempts=_count(fields.get("attempts", "")),
        at_ms=ms_of(entry.id),
        received_ms=received_ms,
    )


def _count(text: str) -> int:
    """Parse an attempt count; 1 if malformed."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 1
