"""A message as the router handles it: its content, its sender and recipient, or why it is refused."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from orchestrator.envelope.message_types import ClearBody, task_id_of
from orchestrator.envelope.model import AgentMessage, Body
from orchestrator.ids import is_session_id, shard_of
from orchestrator.streams import ROUTER_GROUP, Entry, StreamId, attempt_in

#: The entry's field that holds which attempt this is; absent on the first.
ATTEMPT_FIELD = "attempt"
#: What people see instead of a title that only the recipient can read.
SEALED_TITLE = "(encrypted)"


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A message that layers 1 to 3 accept, as far as they can be checked without the ledger."""

    entry: Entry
    #: As it was sent.
    message: AgentMessage
    #: The body as its sender wrote it: decompressed, fetched, decrypted. None: it was not needed, or is sealed.
    body: ClearBody | None
    #: The message as XML with its body encrypted, if it is handed on to its recipient unread; else empty.
    sealed: str = ""
    #: Digest of what its sender signed: distinguishes a copy from another message under the same id.
    digest: str = ""
    #: The external program that it is for; empty: it is for an agent or a part of the stack.
    program: str = ""
    #: Milliseconds that it is dated ahead of the router's clock: its mark lives so much longer.
    ahead_ms: int = 0

    @property
    def group(self) -> str:
        """The group for which the step that carries it out acknowledges it; empty: the step after that does."""
        return "" if self.program else ROUTER_GROUP

    @property
    def type(self) -> str:
        """The message type."""
        return self.entry.stream.type

    @property
    def place(self) -> tuple[StreamId, str]:
        """Which entry it is, among all of all streams."""
        return self.entry.stream, self.entry.id

    @property
    def id(self) -> str:
        """The message-id, in lower case."""
        return self.message.header.message_id.lower()

    @property
    def conversation(self) -> str:
        """The correlation-id, in lower case; its own id if it starts a conversation."""
        return self.message.conversation_id

    @property
    def first(self) -> str:
        """The message that its conversation began with: the end of its chain, or itself."""
        chain = self.message.header.conversation_chain
        return chain[-1].lower() if chain else self.id

    @property
    def sender(self) -> str:
        """The sender's name."""
        return self.message.header.sender.agent_name

    @property
    def recipient(self) -> str:
        """The recipient's name."""
        return self.message.header.recipient.agent_name

    @property
    def task_id(self) -> str:
        """The task-id in its body; of an encrypted launch of the stack's own the session that it begins; or empty."""
        return launched_task(self.entry, self.body)

    @property
    def expires_ms(self) -> int | None:
        """When it expires, in milliseconds since the epoch."""
        expiration = self.message.header.expiration
        return None if expiration is None else expiration.instant_ms

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return attempt_of(self.entry)


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """The reason why a message is not carried out now."""

    #: Name of the rule, one of those in the documented table.
    rule: str
    #: One sentence: what is wrong and what to do.
    reason: str
    #: Whether the same message may be accepted later with nothing changed in it.
    retryable: bool = False
    #: The message, as far as it could be read.
    message: AgentMessage | None = None
    #: Whether the sender's signature was verified, so that its name can be relied upon.
    trusted: bool = False


def launched_task(entry: Entry, body: Body | None) -> str:
    """The task-id in a body, or the session beside an entry of the stack whose body is encrypted."""
    return task_id_of(body) or entry.session


def shard_of_message(message: AgentMessage, shards: int) -> int:
    """The shard that a message of an external program belongs to: its session's, else one of its conversation."""
    task_id = task_id_of(message.body)
    if is_session_id(task_id):
        return shard_of(task_id)
    return zlib.crc32(message.conversation_id.encode()) % shards


def attempt_of(entry: Entry) -> int:
    """Return the attempt of an entry; 1 if malformed."""
    return attempt_in(entry.extra.get(ATTEMPT_FIELD, ""))


def since_of(entry: Entry, now_ms: int) -> int:
    """When the attempt of an entry began: now unless it waited, and never later than now."""
    text = entry.extra.get("since", "")
    return min(now_ms, int(text)) if text.isascii() and text.isdigit() and len(text) < 16 else now_ms
