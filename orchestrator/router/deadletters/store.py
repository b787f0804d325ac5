"""Dead letters: messages that will not be tried again, each with its reason, visible until replayed or dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import redis

from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.received import Rejection, attempt_of
from orchestrator.streams import DeadLimits, Entry, StreamId

#: Dead letters read in one go.
_PAGE: Final = 1000


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A dead letter."""

    #: The id by which the `dlq` commands know it.
    id: str
    #: Its stream: `shard/type/priority`.
    stream: StreamId
    #: The id of its entry in the stream.
    entry: str
    #: The rule that it broke.
    rule: str
    #: Why it was given up.
    reason: str
    #: How often it was tried.
    attempts: int
    #: When it was given up.
    at_ms: int
    #: Its id.
    message_id: str
    #: Its type.
    type: str
    #: The agent that sent it.
    sender: str
    #: The agent that it is for.
    recipient: str
    #: Its conversation.
    conversation: str
    #: The original bytes.
    data: bytes


def verified_sender(rejection: Rejection) -> str:
    """The sender that a dead letter counts for; '' if its signature did not count."""
    return rejection.message.header.sender.agent_name if rejection.trusted and rejection.message else ""


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
        "verified",
        int(bool(verified_sender(rejection))),
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

    def all(self, *, since_ms: int = 0) -> list[DeadLetter]:
        """Every dead letter that was given up at that time or later, oldest first."""
        found = [
            dead_letter for shard in range(self._shards) for dead_letter in self._of_shard(shard, since_ms)
        ]
        return sorted(found, key=lambda dead_letter: (dead_letter.at_ms, dead_letter.id))

    def expire(self, limits: DeadLimits) -> int:
        """Drop dead letters that are too old, or too many under changed limits; return how many. Harmless to repeat."""
        batch = Scripts(self._redis).batch()
        for shard in range(self._shards):
            names = [keys.dead(shard), keys.dead_index(shard), keys.dead_usage(shard)]
            batch.script("dead_expire", names, limits.args)
        return sum(batch.answers())

    def _of_shard(self, shard: int, since_ms: int) -> Iterator[DeadLetter]:
        first = str(max(0, since_ms))
        while True:
            rows: Any = self._redis.xrange(keys.dead(shard), min=first, count=_PAGE)
            yield from (_letter(shard, row) for row in rows)
            if len(rows) < _PAGE:
                return
            first = f"({rows[-1][0].decode()}"

    def get(self, dead_id: str) -> DeadLetter | None:
        """The dead letter of that id, or None."""
        shard, _, entry = dead_id.partition("-")
        try:
            number = int(shard, 16)
            rows: Any = self._redis.xrange(keys.dead(number), entry, entry)
        except (ValueError, redis.ResponseError):
            return None
        return _letter(number, rows[0]) if rows else None


def _letter(shard: int, row: tuple[bytes, dict[bytes, bytes]]) -> DeadLetter:
    entry_id, fields = row

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode("utf-8", "replace")

    try:
        stream = StreamId.parse(text(b"stream"))._replace(shard=shard)
    except ValueError:  # somebody else's entry: it can be shown and dropped
        stream = StreamId(shard, "", "")
    attempts = text(b"attempts")
    return DeadLetter(
        id=f"{shard:02x}-{entry_id.decode()}",
        stream=stream,
        entry=text(b"entry"),
        rule=text(b"rule"),
        reason=text(b"reason"),
        attempts=int(attempts) if attempts.isascii() and attempts.isdigit() and len(attempts) < 6 else 1,
        at_ms=int(entry_id.partition(b"-")[0]),
        message_id=text(b"message-id"),
        type=stream.type,
        sender=text(b"sender"),
        recipient=text(b"recipient"),
        conversation=text(b"conversation"),
        data=fields.get(b"envelope", b""),
    )
