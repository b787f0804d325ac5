"""Dead letters: messages that will not be tried again, each with its reason, visible until replayed or dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

import redis
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Arg, Scripts
from orchestrator.router.received import Rejection, attempt_of
from orchestrator.streams import DeadLimits, Entry, StreamId, attempt_in

#: Dead letters read in one go.
_PAGE: Final = 1000


class DeadLetter(BaseModel):
    """A dead letter, as its entry has it: under the names of the fields, or their aliases."""

    model_config = ConfigDict(frozen=True)

    #: The id by which the `dlq` commands know it.
    id: str
    #: Its stream: `shard/type/priority`.
    stream: StreamId
    #: The id of its entry in the stream.
    entry: str = ""
    #: The rule that it broke.
    rule: str = ""
    #: Why it was given up.
    reason: str = ""
    #: How often it was tried.
    attempts: Annotated[int, BeforeValidator(attempt_in)] = 1
    #: When it was given up.
    at_ms: int
    #: Its id.
    message_id: str = Field("", alias="message-id")
    #: Its type.
    type: str
    #: The agent that sent it.
    sender: str = ""
    #: The agent that it is for.
    recipient: str = ""
    #: Its conversation.
    conversation: str = ""
    #: The original bytes.
    data: bytes = Field(b"", alias="envelope")


def verified_sender(rejection: Rejection) -> str:
    """The sender that a dead letter counts for; '' if its signature did not count."""
    return rejection.message.header.sender.agent_name if rejection.trusted and rejection.message else ""


def dead_letter_fields(entry: Entry, rejection: Rejection) -> dict[str, Arg]:
    """Return the fields of the dead letter for an entry."""
    fields: dict[str, Arg] = {
        "envelope": entry.data or b"",
        "stream": str(entry.stream),
        "entry": entry.id,
        "rule": rejection.rule,
        "reason": rejection.reason,
        "attempts": attempt_of(entry),
        "verified": int(bool(verified_sender(rejection))),
    }
    if (message := rejection.message) is not None:
        fields["message-id"] = message.header.message_id.lower()
        fields["sender"] = message.header.sender.agent_name
        fields["recipient"] = message.header.recipient.agent_name
        fields["conversation"] = message.conversation_id
    return fields


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

    known: dict[str, Any] = {n.decode("utf-8", "replace"): v for n, v in fields.items()}
    data = known.pop("envelope", b"")
    known = {name: value.decode("utf-8", "replace") for name, value in known.items()}
    try:
        stream = StreamId.parse(known.get("stream", ""))._replace(shard=shard)
    except ValueError:  # somebody else's entry: it can be shown and dropped
        stream = StreamId(shard, "", "")
    place = {"id": f"{shard:02x}-{entry_id.decode()}", "stream": stream, "type": stream.type}
    at_ms = int(entry_id.partition(b"-")[0])
    return DeadLetter.model_validate({**known, **place, "at_ms": at_ms, "envelope": data})
