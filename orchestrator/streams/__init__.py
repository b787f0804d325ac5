"""Messages on Redis streams, by type and priority: publish, consume, reclaim, trim."""

from __future__ import annotations

from orchestrator.streams.port import (
    AUDIT_GROUP,
    ENVELOPE_FIELD,
    FROM_FIELD,
    GROUPS,
    INBOX,
    LEDGER,
    MESSAGE_TYPES,
    OUTBOX,
    PRIORITIES,
    ROUTER_GROUP,
    Backlog,
    Entry,
    Portion,
    StreamId,
    Streams,
    all_streams,
    boxes,
    consumer_name,
    transition_streams,
)
from orchestrator.streams.redis_streams import RedisStreams, stream_key

__all__ = [
    "AUDIT_GROUP",
    "ENVELOPE_FIELD",
    "FROM_FIELD",
    "GROUPS",
    "INBOX",
    "LEDGER",
    "MESSAGE_TYPES",
    "OUTBOX",
    "PRIORITIES",
    "ROUTER_GROUP",
    "Backlog",
    "Entry",
    "Portion",
    "RedisStreams",
    "StreamId",
    "Streams",
    "all_streams",
    "boxes",
    "consumer_name",
    "stream_key",
    "transition_streams",
]
