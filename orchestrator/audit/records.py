"""What the audit trail keeps of a message and of a dead letter, as values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from lxml import etree

from orchestrator.clock import isoformat
from orchestrator.envelope.model_values import NAMESPACE
from orchestrator.envelope.parse import Limits, Refused, parse
from orchestrator.streams import Entry

_NS = f"{{{NAMESPACE}}}"
_TASK_PATHS = (
    f"{_NS}task-id",
    f"{_NS}task/{_NS}task-id",
    f"{_NS}review/{_NS}task-id",
    f"{_NS}escalation/{_NS}task-id",
)
#: Larger envelopes than the router accepts are kept too, unread.
_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class MessageRecord:
    """One published entry; fields that could not be read are empty."""

    stream: str
    entry_id: str
    message_id: str
    type: str
    priority: str
    sender: str
    recipient: str
    correlation_id: str
    parent_id: str
    task_id: str
    sent: str
    published_ms: int
    attempt: int
    xml: bytes
    sha256: str
    received_ms: int
    seq: int = 0
    chain: str = ""
    #: Why it is a dead letter, as `rule: reason`; empty: it is none.
    dead: str = ""

    @property
    def published(self) -> str:
        """When it entered its stream, ISO 8601."""
        return isoformat(self.published_ms)


@dataclass(frozen=True, kw_only=True)
class DeadRecord:
    """One dead letter, as the audit trail keeps it."""

    dead_id: str
    stream: str
    entry_id: str
    rule: str
    reason: str
    attempts: int
    at_ms: int
    received_ms: int


def read_entry(entry: Entry, *, received_ms: int) -> MessageRecord:
    """What is to be kept of an entry. Never raises: what cannot be read is kept as it is."""
    data = entry.data or b""
    header: dict[str, str] = {}
    task_id = parent_id = ""
    if data:
        try:
            root = parse(data, _LIMITS).root
        except Refused:
            root = None
        if root is not None and root.tag == f"{_NS}agent-message":
            header = _header(root)
            parent_id = header.pop("parent", "")
            task_id = _task(root)
    message_id = header.get("message-id", "").lower()
    attempt = entry.extra.get("attempt", "1")
    return MessageRecord(
        stream=str(entry.stream),
        entry_id=entry.id,
        message_id=message_id,
        type=entry.stream.type,
        priority=entry.stream.priority,
        sender=header.get("sender", ""),
        recipient=header.get("recipient", ""),
        correlation_id=header.get("correlation-id", "").lower() or message_id,
        parent_id=parent_id,
        task_id=task_id,
        sent=header.get("timestamp", ""),
        published_ms=int(entry.id.partition("-")[0]),
        attempt=int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 6 else 1,
        xml=data,
        sha256=hashlib.sha256(data).hexdigest(),
        received_ms=received_ms,
    )


def _header(root: etree._Element) -> dict[str, str]:
    facts: dict[str, str] = {}
    header = root.find(f"{_NS}header")
    if header is None:
        return facts
    for child in header:
        name = str(child.tag).removeprefix(_NS)
        if name in {"sender", "recipient"}:
            facts[name] = (child.findtext(f"{_NS}agent-name") or "").strip()
        elif name == "conversation-chain":
            if len(child):
                facts["parent"] = (child[0].text or "").strip().lower()
        else:
            facts[name] = (child.text or "").strip()
    return facts


def _task(root: etree._Element) -> str:
    body = root.find(f"{_NS}body")
    if body is not None:
        for path in _TASK_PATHS:
            text = body.findtext(path)
            if text:
                return text.strip()
    return ""
