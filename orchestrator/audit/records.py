"""Records of messages, dead letters and transitions in the audit trail, and the bodies they keep."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lxml import etree
from sqlalchemy import Connection, select

from orchestrator.audit.database import BODIES, MESSAGES
from orchestrator.audit.text import text_of
from orchestrator.audit.transitions import ms_of
from orchestrator.envelope import canonical, payload
from orchestrator.envelope.codec import decode
from orchestrator.envelope.document import read_header
from orchestrator.envelope.message_types import MESSAGE_TYPES, SESSION_STARTING, task_id_of
from orchestrator.envelope.model import AgentMessage, Header
from orchestrator.envelope.model_values import NAMESPACE, collapse
from orchestrator.envelope.parse import DEFAULT_LIMITS, ParseLimits, Unparsable, parse
from orchestrator.envelope.report import schema_findings
from orchestrator.envelope.sealing import Opener
from orchestrator.envelope.signature import KeyLookup, verify
from orchestrator.errors import DecryptionError, InvalidEnvelope, KeyringError, PayloadError, SignatureError
from orchestrator.log import get_logger
from orchestrator.machine import isoformat
from orchestrator.redisdb.client import is_outage
from orchestrator.streams import Entry, attempt_in

_NS: Final = f"{{{NAMESPACE}}}"
_TASK_ID: Final = f"{_NS}task-id"
#: The elements of a body in which a task-id may stand, beside the body itself.
_AROUND: Final = frozenset(f"{_NS}{row.task_part}" for row in MESSAGE_TYPES.values() if row.task_part)
_STATUS: Final = f"{_NS}status"
_APART: Final = frozenset({f"{_NS}compressed-payload", f"{_NS}claim-check"})


class Facts(NamedTuple):
    """Fields of an envelope; empty if it is not valid. Ids are in lower case."""

    message_id: str = ""
    sender: str = ""
    recipient: str = ""
    correlation_id: str = ""
    parent_id: str = ""
    task_id: str = ""
    sent: str = ""
    #: How a task stands, by a status-update or a task-completion.
    status: str = ""
    #: The body as it is stored apart from its envelope; empty: it is not, or is gone.
    body: bytes = b""


NOTHING: Final = Facts()


class FactsReader:
    """Reads the facts of envelopes. Safe to share between threads.

    Args:
        limits: of what is read; a larger envelope is kept unread, as the router refuses it.
        opener: fetches and decompresses bodies that are stored apart; None: their task-ids stay unknown.
        keys: whose signatures count: only what is signed is opened, as a small envelope may hold a large body.
            None: everything is.
    """

    def __init__(
        self,
        *,
        limits: ParseLimits = DEFAULT_LIMITS,
        opener: Opener | None = None,
        keys: KeyLookup | None = None,
    ) -> None:
        self._limits = limits
        self._opener = opener
        self._keys = keys

    def kept(self, octets: bytes) -> bytes:
        """Return the octets to keep of an entry; of one that is larger than any message, its size and digest."""
        if len(octets) <= self._limits.size:
            return octets
        digest = hashlib.sha256(octets).hexdigest()
        return (
            f"{len(octets)} octets with the SHA-256 {digest}, more than the {self._limits.size} of a message"
        ).encode()

    def read(self, octets: bytes) -> Facts:
        """Return the facts of an envelope. Raises nothing, whatever the bytes are.

        Raises:
            redis.RedisError: its body is stored, and Redis is away: it is to be read again later.
        """
        if not octets or len(octets) > self._limits.size:
            return NOTHING
        try:
            message = canonical.read(octets, self._limits)
            if message is not None:
                return facts_of(message)
            facts = self.parsed(octets)
            if facts.message_id:
                # The index and searches will do it again: what ends a process that parses it does so here, where that counts.
                text_of(octets, facts.body)
            return facts
        except (
            Exception
        ) as error:  # nothing a message holds may end the writer: its bytes are kept all the same
            if is_outage(error):
                raise
            get_logger().exception("facts-not-read", octets=len(octets))
            return NOTHING

    def parsed(self, octets: bytes) -> Facts:
        """Return the same, of a document in any spelling."""
        try:
            root, text = parse(octets, self._limits)
            if schema_findings(root, text, self._limits, detailed=False):
                return NOTHING
        except Unparsable:
            return NOTHING
        header = read_header(root)
        if header is None:
            return NOTHING
        body = root[1]
        first = body[0]
        if first.tag in _APART:
            return self._apart(header, body.get("type", ""), root, octets)
        task = (first if first.tag in _AROUND else body).findtext(_TASK_ID)
        how = body.findtext(_STATUS) if MESSAGE_TYPES[body.get("type", "")].statuses else None
        return _facts(
            header, body.get("type", ""), collapse(task) if task else "", collapse(how) if how else ""
        )

    def _apart(self, header: Header, kind: str, root: etree._Element, octets: bytes) -> Facts:
        """Return the facts where the body is compressed or stored, and the body that is stored.

        The task-id is empty if the body cannot be opened, or is encrypted.
        """
        if self._opener is None:
            return _facts(header, kind, "")
        stored = b""
        try:
            if self._keys is not None:
                verify(root, self._keys)
            message = decode(octets, limits=self._limits)
            stored = self._opener.stored(message)
            return facts_of(self._opener.fetch(message))._replace(body=stored)
        except PayloadError as error:
            get_logger().warning("body-not-kept", message=header.message_id, reason=str(error))
        except (SignatureError, KeyringError, InvalidEnvelope, DecryptionError):
            pass
        return _facts(header, kind, "")._replace(body=stored)


def facts_of(message: AgentMessage) -> Facts:
    """Return the facts of a message whose body stands in its envelope as it is."""
    status = str(getattr(message.body, "status", ""))
    return _facts(message.header, message.body.type, task_id_of(message.body), status)


def _facts(header: Header, kind: str, task_id: str, status: str = "") -> Facts:
    message_id = header.message_id.lower()
    chain = header.conversation_chain
    # A launch is about the session that it starts.
    sessions = (header.sender_session, header.recipient_session)[:: -1 if kind in SESSION_STARTING else 1]
    return Facts(
        message_id=message_id,
        sender=header.sender.agent_name,
        recipient=header.recipient.agent_name,
        correlation_id=header.correlation_id.lower() if header.correlation_id else message_id,
        parent_id=chain[0].lower() if chain else "",
        task_id=task_id or next(filter(None, sessions), ""),
        sent=str(header.timestamp),
        status=status,
    )


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
    #: The task or session that it is about: by its body, else the one that it speaks for or is for; else empty.
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
    #: SHA-256 of its body, if it was stored apart and is kept (`--body` prints it); else empty.
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
        **{**facts._asdict(), "body": hashlib.sha256(facts.body).hexdigest() if facts.body else ""},
        stream=str(entry.stream),
        entry_id=entry.id,
        type=entry.stream.type,
        priority=entry.stream.priority,
        published_ms=ms_of(entry.id),
        attempt=attempt_in(entry.extra.get("attempt", "")),
        xml=data,
        sha256=hashlib.sha256(data).hexdigest(),
        received_ms=received_ms,
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
        attempts=attempt_in(fields.get("attempts", "")),
        at_ms=ms_of(entry.id),
        received_ms=received_ms,
    )


#: Octets that a body may have: more than any limit of a stack.
_MOST: Final = 1 << 30
_IS_REFERRED_TO: Final = select(MESSAGES.c.seq).where(MESSAGES.c.body == BODIES.c.sha256).exists()


def keep(db: Connection, bodies: Mapping[str, bytes]) -> None:
    """Write bodies by their digests that are not there yet, compressed."""
    there = {row[0] for row in db.execute(select(BODIES.c.sha256).where(BODIES.c.sha256.in_(bodies)))}
    rows = [
        {"sha256": sha256, "content": payload.compress(octets)}
        for sha256, octets in bodies.items()
        if sha256 not in there
    ]
    if rows:
        db.execute(BODIES.insert(), rows)


def forget(db: Connection) -> None:
    """Remove the bodies that no message refers to any more."""
    db.execute(BODIES.delete().where(~_IS_REFERRED_TO))


def body_of(sha256: str, content: bytes) -> bytes | None:
    """Return the body in a row as it was stored; None if it does not match its digest, as somebody has changed it."""
    try:
        octets = payload.inflate(content, limit=_MOST)
    except PayloadError:
        return None
    return octets if hashlib.sha256(octets).hexdigest() == sha256 else None
