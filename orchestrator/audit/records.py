"""What the audit trail keeps of a message and of a dead letter, as values."""

from __future__ import annotations

import hashlib
import re
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
_TEXT = rb"[^<>&\s](?:[^<>&\r\n\t]*[^<>&\s])?"
_PARTY = (
    rb"<agent-name>(?P<%s>"
    + _TEXT
    + rb")</agent-name><agent-role>[a-z]+</agent-role>(?:<tier>[a-z]+</tier>)?"
)
#: The beginning of an envelope in canonical form, up to what the trail keeps of its body.
_CANONICAL = re.compile(
    rb'<agent-message xmlns="'
    + re.escape(NAMESPACE.encode())
    + rb'" version="1\.0"><header><message-id>(?P<id>[0-9a-fA-F-]{36})</message-id>'
    + rb"<timestamp>(?P<sent>[0-9TZ:.+-]+)</timestamp>"
    + rb"<sender>"
    + _PARTY.replace(b"%s", b"sender")
    + rb"</sender><recipient>"
    + _PARTY.replace(b"%s", b"recipient")
    + rb"</recipient>(?:<correlation-id>(?P<correlation>[0-9a-fA-F-]{36})</correlation-id>)?"
    + rb'(?:<conversation-chain><message-ref index="0">(?P<parent>[0-9a-fA-F-]{36})</message-ref>'
    + rb'(?:<message-ref index="[0-9]+">[0-9a-fA-F-]{36}</message-ref>)*</conversation-chain>)?'
    + rb"(?:<priority>[a-z]+</priority>)?(?:<expiration>[0-9TZ:.+-]+</expiration>)?"
    + rb"(?:<retry-policy>(?:<[a-z-]+>[a-z0-9]+</[a-z-]+>)*</retry-policy>)?</header>"
    + rb'<body type="[a-z-]+">(?:(?:<(?:task|review|escalation)>)?<task-id>(?P<task>'
    + _TEXT
    + rb")</task-id>|(?!<(?:task|review|escalation|task-id)[ >]))"
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
    facts = _canonical_facts(data) or _parsed_facts(data)
    message_id = facts.get("message-id", "").lower()
    attempt = entry.extra.get("attempt", "1")
    return MessageRecord(
        stream=str(entry.stream),
        entry_id=entry.id,
        message_id=message_id,
        type=entry.stream.type,
        priority=entry.stream.priority,
        sender=facts.get("sender", ""),
        recipient=facts.get("recipient", ""),
        correlation_id=facts.get("correlation-id", "").lower() or message_id,
        parent_id=facts.get("parent", ""),
        task_id=facts.get("task", ""),
        sent=facts.get("timestamp", ""),
        published_ms=int(entry.id.partition("-")[0]),
        attempt=int(attempt) if attempt.isascii() and attempt.isdigit() and len(attempt) < 6 else 1,
        xml=data,
        sha256=hashlib.sha256(data).hexdigest(),
        received_ms=received_ms,
    )


def _canonical_facts(data: bytes) -> dict[str, str]:
    """The facts of an envelope as our encoder writes it, without parsing; empty: it is written otherwise.

    The pattern begins with the first octet and leaves no room for a comment, a prefix or an entity: of a whole
    document it finds what a parser would. What follows upon its part is not looked at; the router judges that.
    """
    found = _CANONICAL.match(data) if data.endswith(b"</agent-message>") else None
    if found is None:
        return {}
    try:
        facts = {name: (value or b"").decode() for name, value in found.groupdict().items()}
    except UnicodeDecodeError:
        return {}
    return {
        "message-id": facts["id"],
        "timestamp": facts["sent"],
        "sender": facts["sender"],
        "recipient": facts["recipient"],
        "correlation-id": facts["correlation"],
        "parent": facts["parent"].lower(),
        "task": facts["task"],
    }


def _parsed_facts(data: bytes) -> dict[str, str]:
    """The facts of any other envelope; empty where it cannot be read."""
    if not data:
        return {}
    try:
        root = parse(data, _LIMITS).root
    except Refused:
        return {}
    if root.tag != f"{_NS}agent-message":
        return {}
    return _header(root) | {"task": _task(root)}


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
