"""The streams as the rest of the system sees them: values and one small port."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

#: The message types, in the order of the protocol.
MESSAGE_TYPES = (
    "task-delegation",
    "status-update",
    "task-completion",
    "error",
    "query",
    "review-request",
    "escalation",
    "reply",
    "message",
)
#: The priorities, highest first.
PRIORITIES = ("critical", "high", "normal", "low")

#: The consumer group that acts on messages.
ROUTER_GROUP = "router"
#: The consumer group that writes the audit trail.
AUDIT_GROUP = "audit"
#: The groups without which nothing may be trimmed.
GROUPS = (ROUTER_GROUP, AUDIT_GROUP)

#: The field of an entry that holds the XML.
ENVELOPE_FIELD = "envelope"
#: The field by which the ledger says that it has the effect of an entry already: nobody waits for the router.
NOTED_FIELD = "noted"
#: The field by which a router says from whose outbox it moved an entry.
FROM_FIELD = "from"

#: What stands for the type in the streams of an external program, whose name then stands for the priority.
OUTBOX = "out"
INBOX = "in"

#: What stands for the type and the priority in the stream of a shard's transitions.
LEDGER = "ledger"
TRANSITIONS = "transitions"


class StreamId(NamedTuple):
    """One stream of a shard: all messages of one type and priority, an external program's outbox or inbox, transitions."""

    shard: int
    type: str
    priority: str

    def __str__(self) -> str:
        return f"{self.shard:02x}/{self.type}/{self.priority}"

    @classmethod
    def parse(cls, text: str) -> StreamId:
        """The inverse of ``str``.

        Raises:
            ValueError: the text names no stream.
        """
        shard, message_type, priority = text.split("/", 2)
        return cls(int(shard, 16), message_type, priority)


class Entry(NamedTuple):
    """One entry as a consumer gets it."""

    stream: StreamId
    id: str
    #: The XML, or None when a external program appended an entry without that field.
    data: bytes | None
    #: Every other field of the entry.
    extra: dict[str, str]
    #: How often it was handed out, this time included.
    deliveries: int = 1

    @property
    def noted(self) -> bool:
        """Whether the ledger has its effect already, as it says itself; anybody who may append may say so."""
        return NOTED_FIELD in self.extra

    @property
    def origin(self) -> str:
        """The external program from whose outbox it was moved; or empty."""
        return self.extra.get(FROM_FIELD, "")

    @property
    def waited(self) -> bool:
        """Whether it was put back into its stream after a wait, as it says itself."""
        return bool(self.extra.keys() - {NOTED_FIELD, FROM_FIELD})


class Portion(NamedTuple):
    """How much to take from some streams: at most ``most`` from each."""

    streams: Sequence[StreamId]
    most: int


class Backlog(NamedTuple):
    """How far a group has come in a stream."""

    stream: StreamId
    #: Entries in the stream now.
    length: int
    #: Entries ever published in it.
    published: int
    #: Handed to a consumer and not acknowledged yet.
    pending: int
    #: Milliseconds since the oldest pending one was handed out; 0 when there is none.
    oldest_pending_ms: int


class Streams(Protocol):
    """Append, hand out once to each group, hand out again what its holder left, forget what all have seen."""

    def publish(
        self, stream: StreamId, data: bytes, *, limit: int = 0, extra: dict[str, str] | None = None
    ) -> str:
        """Append an envelope and return its entry id; with a ``limit``, only while the stream is shorter.

        Raises:
            StreamFull: the stream holds ``limit`` entries or more; nothing was appended.
        """
        ...

    def ensure_groups(self, groups: Sequence[str], streams: Sequence[StreamId]) -> None:
        """Make groups that see every entry from the very first; those that exist stay as they are."""
        ...

    def read(
        self, group: str, consumer: str, portions: Sequence[Portion], *, block_ms: int = 0
    ) -> list[Entry]:
        """Hand out entries that nobody in the group has had, in the order of ``portions``.

        Waits up to ``block_ms`` for a first one when there are none.
        """
        ...

    def reclaim(
        self, group: str, consumer: str, streams: Sequence[StreamId], *, idle_ms: int, limit: int
    ) -> list[Entry]:
        """Take over entries that another consumer has held for at least ``idle_ms``: oldest first, ``limit`` a stream."""
        ...

    def acknowledge(self, group: str, entries: Sequence[Entry]) -> int:
        """Say that entries are dealt with; how many of them were still pending."""
        ...

    def trim(self, groups: Sequence[str], streams: Sequence[StreamId], *, also: Sequence[str] = ()) -> int:
        """Drop the entries that every one of ``groups`` has acknowledged; how many.

        ``also`` are groups that count on the streams on which they were made.
        """
        ...

    def backlog(self, group: str, streams: Sequence[StreamId]) -> list[Backlog]:
        """How far the group has come in each stream."""
        ...


def consumer_name(service: str) -> str:
    """A name under which no other process consumes, now or later; it tells people where to look."""
    return f"{service}-{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


def boxes(kind: str, programs: Iterable[str], shards: int = 1) -> list[StreamId]:
    """The outboxes (``OUTBOX``) or inboxes (``INBOX``) of external programs."""
    return [StreamId(shard, kind, program) for program in programs for shard in range(shards)]


def transition_streams(shards: int = 1) -> list[StreamId]:
    """The streams in which the ledger says what it changed; only the audit writer reads them."""
    return [StreamId(shard, LEDGER, TRANSITIONS) for shard in range(shards)]


def all_streams(
    shards: int = 1, types: Sequence[str] = MESSAGE_TYPES, priorities: Sequence[str] = PRIORITIES
) -> list[StreamId]:
    """The streams of those types and priorities in every shard, highest priority first."""
    return [StreamId(s, t, p) for p in priorities for s in range(shards) for t in types]
