"""The facts of an entry that the audit trail is searched by, from the envelope as the router reads it.

They come from the tree that the schema has accepted, by way of the same reader as the router's: no spelling that the
router acts upon loses a fact here. Of an envelope that is not valid nothing is known but its bytes. What is spelt in
the encoder's way is read without a tree, as the router reads it.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from lxml import etree

from orchestrator.audit.text import text_of
from orchestrator.envelope import canonical
from orchestrator.envelope.codec import decode
from orchestrator.envelope.document import read_header
from orchestrator.envelope.message_types import MESSAGE_TYPES, task_id_of
from orchestrator.envelope.model import AgentMessage, Header
from orchestrator.envelope.model_values import NAMESPACE, collapse
from orchestrator.envelope.parse import DEFAULT_LIMITS, ParseLimits, Unparsable, parse
from orchestrator.envelope.report import schema_findings
from orchestrator.envelope.sealing import Opener
from orchestrator.envelope.signature import KeyLookup, verify
from orchestrator.errors import DecryptionError, InvalidEnvelope, KeyringError, PayloadError, SignatureError
from orchestrator.log import get_logger
from orchestrator.redisdb.client import is_outage

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
        opener: fetches and decompresses bodies that travel apart; None: their task-ids stay unknown.
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
            return self._apart(header, root, octets)
        task = (first if first.tag in _AROUND else body).findtext(_TASK_ID)
        how = body.findtext(_STATUS) if MESSAGE_TYPES[body.get("type", "")].statuses else None
        return _facts(header, collapse(task) if task else "", collapse(how) if how else "")

    def _apart(self, header: Header, root: etree._Element, octets: bytes) -> Facts:
        """Return the facts where the body is compressed or stored, and the body that is stored.

        The task-id is empty if the body cannot be opened, or is encrypted.
        """
        if self._opener is None:
            return _facts(header, "")
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
        return _facts(header, "")._replace(body=stored)


def facts_of(message: AgentMessage) -> Facts:
    """Return the facts of a message whose body stands in its envelope as it is."""
    status = str(getattr(message.body, "status", ""))
    return _facts(message.header, task_id_of(message.body), status)


def _facts(header: Header, task_id: str, status: str = "") -> Facts:
    message_id = header.message_id.lower()
    chain = header.conversation_chain
    return Facts(
        message_id=message_id,
        sender=header.sender.agent_name,
        recipient=header.recipient.agent_name,
        correlation_id=header.correlation_id.lower() if header.correlation_id else message_id,
        parent_id=chain[0].lower() if chain else "",
        task_id=task_id,
        sent=str(header.timestamp),
        status=status,
    )
