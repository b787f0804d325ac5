"""Dead letters: messages that will not be tried again, each with its reason, visible until replayed or dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis

from orchestrator.redisdb import keys
from orchestrator.router.letter import Rejection, attempt_of
from orchestrator.streams import Entry, StreamId


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """One dead letter."""

    #: The id it is named by, with its shard: `00-1700000000000-0`.
    id: str
    stream: StreamId
    #: The id of the entry in its stream.
    entry: str
    rule: str
    reason: str
    attempts: int
    #: When it was given up, in milliseconds since the epoch.
    at_ms: int
    #: Facts of the header, empty where it could not be read.
    message_id: str
    type: str
    sender: str
    recipient: str
    conversation: str
    #: The original bytes.
    data: bytes


def dead_letter_fields(entry: Entry, rejection: Rejection) -> list[str | bytes | int]:
    """Field, value, … of the dead letter for an entry."""
    header = rejection.message.header if rejection.message is not None else None
    return [
        "envelope",
        entry.data if entry.data is not None else b"",
        "stream",
        str(entry.stream),
        "entry",
        entry.id,
        "rule",
        rejection.rule,
        "reason",
        rejection.reason,
        "attempts",
        attempt_of(entry),
        "message-id",
        header.message_id.lower() if header is not None else "",
        "sender",
        header.sender.agent_name if header is not None else "",
        "recipient",
        header.recipient.agent_name if header is not None else "",
        "conversation",
        rejection.message.conversation_id if rejection.message is not None else "",
    ]


class DeadLetters:
    """The dead letters of a stack."""

    def __init__(self, client: redis.Redis, *, shards: int = 1) -> None:
        self._redis = client
        self._shards = shards

    def all(self, *, limit: int = 10_000) -> list[DeadLetter]:
        """The dead letters, oldest first."""
        found: list[DeadLetter] = []
        for shard in range(self._shards):
            rows: Any = self._redis.xrange(keys.dead(shard), count=limit)
            found += [_letter(shard, row) for row in rows]
        return sorted(found, key=lambda letter: (letter.at_ms, letter.id))[:limit]

    def get(self, dead_id: str) -> DeadLetter | None:
        """The dead letter of that id, or None."""
        shard, _, entry = dead_id.partition("-")
        try:
            number = int(shard, 16)
            rows: Any = self._redis.xrange(keys.dead(number), entry, entry)
        except (ValueError, redis.ResponseError):
            return None
        return _letter(number, rows[0]) if rows else None

    def count(self) -> int:
        """How many there are."""
        return sum(int(self._redis.xlen(keys.dead(shard))) for shard in range(self._shards))


def _letter(shard: int, row: tuple[bytes, dict[bytes, bytes]]) -> DeadLetter:
    entry_id, fields = row

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode("utf-8", "replace")

    stream = StreamId.parse(text(b"stream"))
    return DeadLetter(
        id=f"{shard:02x}-{entry_id.decode()}",
        stream=stream,
        entry=text(b"entry"),
        rule=text(b"rule"),
        reason=text(b"reason"),
        attempts=int(text(b"attempts") or 1),
        at_ms=int(entry_id.partition(b"-")[0]),
        message_id=text(b"message-id"),
        type=stream.type,
        sender=text(b"sender"),
        recipient=text(b"recipient"),
        conversation=text(b"conversation"),
        data=fields.get(b"envelope", b""),
    )
