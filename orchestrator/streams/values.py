"""The names and values of streams."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from orchestrator import machine
from orchestrator.config.settings import Settings
from orchestrator.envelope.message_types import MESSAGE_TYPES

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
#: The field by which the ledger marks an entry whose effect it has already: nobody waits for the router.
APPLIED_FIELD = "already_applied"
#: The field in which a router names the outbox from which it moved an entry.
FROM_FIELD = "from"
#: The field that says how many bytes an entry of an outbox had that was too large to be moved.
OCTETS_FIELD = "octets"
#: The field that names the session which an encrypted message begins.
SESSION_FIELD = "session"

#: The types of the streams of an external program; the name of the program stands for the priority.
OUTBOX = "out"
INBOX = "in"

#: The type of the streams that each shard has once; their name stands for the priority.
LEDGER = "ledger"
TRANSITIONS = "transitions"
SESSION_EVENTS = "session-events"
NOTICES = "notices"
DEAD = "dead"


def attempt_in(text: str) -> int:
    """Return the number of an attempt; 1 if malformed."""
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 6 else 1


class StreamId(NamedTuple):
    """A stream of a shard: messages of one type and priority, a box of an external program, or a stream of the ledger."""

    shard: int
    type: str
    priority: str

    def __str__(self) -> str:
        return f"{self.shard:02x}/{self.type}/{self.priority}"

    @classmethod
    def parse(cls, text: str) -> StreamId:
        """Return the inverse of ``str``.

        Raises:
            ValueError: the text names no stream.
        """
        shard, message_type, priority = text.split("/", 2)
        return cls(int(shard, 16), message_type, priority)


class Entry(NamedTuple):
    """An entry as a consumer gets it."""

    stream: StreamId
    id: str
    #: The XML, or None when an external program appended an entry without that field.
    data: bytes | None
    #: Every other field of the entry.
    extra: dict[str, str]
    #: How often it was handed out, this time included.
    deliveries: int = 1

    @property
    def already_applied(self) -> bool:
        """True if the entry claims that its effect is in the ledger already; any program that may append may claim
        it.
        """
        return APPLIED_FIELD in self.extra

    @property
    def origin(self) -> str:
        """The external program from whose outbox a router moved the entry; else empty."""
        return self.extra.get(FROM_FIELD, "")

    @property
    def session(self) -> str:
        """The session that the entry begins, if its body is encrypted; else empty."""
        return self.extra.get(SESSION_FIELD, "")

    @property
    def waited(self) -> bool:
        """True if the entry claims that it was put back into its stream after a wait."""
        return bool(self.extra.keys() - {APPLIED_FIELD, FROM_FIELD, OCTETS_FIELD, SESSION_FIELD})


class Portion(NamedTuple):
    """Streams to read, and how many entries to take from each at most."""

    streams: Sequence[StreamId]
    most: int


class Pending(NamedTuple):
    """An entry that a consumer was handed and has not acknowledged."""

    id: str
    consumer: str
    deliveries: int
    #: Milliseconds since it was handed out last.
    idle_ms: int


class Backlog(NamedTuple):
    """Progress of a group in a stream."""

    stream: StreamId
    #: Entries ever published in the stream.
    published: int
    #: Entries that no consumer was handed, and when the oldest of them was appended, in ms since the epoch.
    unread: int
    unread_since_ms: int | None
    #: Entries that a consumer was handed and has not acknowledged, and when the oldest of them was appended.
    pending: int
    pending_since_ms: int | None
    #: Milliseconds since the oldest pending entry was handed out; 0 when there is none.
    oldest_pending_ms: int


def consumer_name(service: str) -> str:
    """Return a name that no other process consumes under, now or later; it names the host and ends with the process's
    mark.
    """
    return f"{service}-{socket.gethostname()}-{os.getpid()}-{machine.uuid4().hex[:6]}@{machine.own_mark()}"


def boxes(kind: str, programs: Iterable[str], shards: int = 1) -> list[StreamId]:
    """Return the outboxes (``OUTBOX``) or inboxes (``INBOX``) of external programs."""
    return [StreamId(shard, kind, program) for program in programs for shard in range(shards)]


def ledger_streams(name: str, shards: int = 1) -> list[StreamId]:
    """Return the stream ``name`` of each shard, for example ``TRANSITIONS``."""
    return [StreamId(shard, LEDGER, name) for shard in range(shards)]


def all_streams(shards: int = 1, types: Iterable[str] = MESSAGE_TYPES) -> list[StreamId]:
    """Return the streams of those types in every shard, highest priority first."""
    return [StreamId(s, t, p) for p in PRIORITIES for s in range(shards) for t in types]


@dataclass(frozen=True, kw_only=True)
class DeadLimits:
    """Limits on the number, size and age of the dead letters of one shard."""

    entries: int = 10_000
    bytes: int = 64 * 1024 * 1024
    #: The part of both that one sender may take; all whose signature did not count are one.
    share: float = 0.25
    ttl_ms: int = 30 * 86_400_000

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the limits in the settings."""
        return cls(
            entries=settings.dead_letters_max_entries,
            bytes=settings.dead_letters_max_bytes,
        )

    @property
    def args(self) -> list[int]:
        """Return them as the scripts take them."""
        return [
            self.entries,
            self.bytes,
            max(1, int(self.entries * self.share)),
            max(1, int(self.bytes * self.share)),
            self.ttl_ms,
        ]
