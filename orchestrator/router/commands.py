"""The steps that carry messages out, as values: a script call, and what its answer means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

from orchestrator.envelope.model import Header
from orchestrator.ledger import RunRef
from orchestrator.log import get_logger
from orchestrator.redisdb import keys
from orchestrator.redisdb.key_table import in_its_shard
from orchestrator.redisdb.scripts import Arg
from orchestrator.router.received import ReceivedMessage, Rejection
from orchestrator.router.validation.validator import reject
from orchestrator.streams import stream_key

#: Milliseconds that a duplicate mark outlives the message: no clock is exact.
MARK_MARGIN_MS = 600_000


@dataclass(frozen=True, kw_only=True)
class CommandOutcome:
    """The outcome of one message."""

    kind: Literal["done", "duplicate", "rejected"]
    #: A run to send to a worker.
    dispatch: RunRef | None = None
    rejection: Rejection | None = None


DONE = CommandOutcome(kind="done")
DUPLICATE = CommandOutcome(kind="duplicate")


def rejected(rule: str, reason: str, received: ReceivedMessage) -> CommandOutcome:
    """The message breaks a rule that needs the ledger."""
    return CommandOutcome(kind="rejected", rejection=reject(rule, reason, received.message))


def outcome_of(answer: bytes, received: ReceivedMessage) -> CommandOutcome | None:
    """Return the outcome for an answer that all scripts may give; None for any other answer."""
    match answer:
        case b"done":
            return DONE
        case b"duplicate":
            return DUPLICATE
        case b"other":
            return message_id_taken(received)
    return None


def failed(script: str, why: object, received: ReceivedMessage) -> CommandOutcome:
    """The server could not carry the message out, and would carry out any other."""
    get_logger().error("act-failed", script=script, message=received.id, error=str(why))
    return rejected("internal-error", f"{script}: {why}", received)


def task_taken(task_id: str, session: str, received: ReceivedMessage) -> CommandOutcome:
    """The task-id belongs to another delegation."""
    reason = f"task-id {task_id!r} belongs to session {session} of this conversation; give each task an id of its own"
    return rejected("task-id", reason, received)


def task_unknown(session: str, received: ReceivedMessage) -> CommandOutcome:
    """The task-id is a session id of the stack, and no session has it."""
    reason = f"no session {session!r} is in this ledger; give the task an id of your own"
    return rejected("session-unknown", reason, received)


def message_id_taken(received: ReceivedMessage) -> CommandOutcome:
    """The sender has used the message-id for another message."""
    reason = (
        f"{received.sender!r} has sent another message with the message-id {received.id}; "
        "give each message an id of its own"
    )
    return rejected("message-id", reason, received)


def wrong_shard(shard: int, received: ReceivedMessage) -> CommandOutcome:
    """The message stands in the stream of a shard in which it may begin nothing."""
    reason = (
        f"the message belongs to shard {shard:02x} and stands in a stream of shard "
        f"{received.entry.stream.shard:02x}; append it there: by the session that its chain names, or else by the "
        "CRC-32 of its correlation-id modulo the number of shards"
    )
    return rejected("shard", reason, received)


def session_unknown(received: ReceivedMessage) -> CommandOutcome:
    """The message is about an unknown session of its sender."""
    reason = (
        f"no session that {received.sender!r} runs is known by this task-id or chain; "
        "name the task-id you were given, and carry its message on in the chain"
    )
    return rejected("session-unknown", reason, received)


def not_taking_part(received: ReceivedMessage) -> CommandOutcome:
    """The message names a conversation that its sender has no part in."""
    reason = (
        f"{received.sender!r} has no part in conversation {received.conversation}: it was given no task and no message "
        "in it, and did not begin it; leave correlation-id and chain out to begin one"
    )
    return rejected("conversation-party", reason, received)


@dataclass(frozen=True, kw_only=True)
class ScriptCommand:
    """An atomic step, and how to read its answer."""

    script: str
    keys: Sequence[str]
    args: Sequence[Arg]
    read: Callable[[Any], CommandOutcome] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A step that changes nothing: the outcome is known."""

    outcome: CommandOutcome


class Batched(Enum):
    """A step that is carried out for many messages in one script call."""

    #: The ledger has the message's effect already: it is only marked seen, counted and acknowledged. Most messages are such.
    ACK_ONLY = auto()
    #: The message begins a session that the ledger has already.
    START_RUN = auto()


Step = ScriptCommand | Resolved | Batched


def mark_ms(header: Header, max_age_ms: int) -> int:
    """Milliseconds for which a duplicate mark is kept after its message was acted upon."""
    if header.expiration is None:
        return max_age_ms + MARK_MARGIN_MS
    age_ms = max(0, header.expiration.instant_ms - header.timestamp.instant_ms)
    return min(age_ms, max_age_ms) + MARK_MARGIN_MS


@dataclass(frozen=True, kw_only=True)
class ConversationLimits:
    """Bounds of the router's own records."""

    #: Milliseconds that a duplicate mark is kept at most.
    max_age_ms: int = 86_400_000
    #: Messages that one conversation may have; 0: any number.
    conversation_messages: int = 1_000_000
    #: Milliseconds that a review may take.
    review_ms: int = 86_400_000

    def review_due_ms(self, received: ReceivedMessage) -> int:
        """When a review has to be done, in milliseconds since the epoch; 0 for other messages."""
        if received.type != "review-request":
            return 0
        policy = received.message.header.retry_policy
        limit_ms = self.review_ms if policy is None else policy.timeout_seconds * 1000
        return int(received.entry.id.partition("-")[0]) + round(limit_ms)

    def mark_ms(self, received: ReceivedMessage) -> int:
        """Milliseconds that the message's duplicate mark is kept: as long as a copy of it may be accepted."""
        return mark_ms(received.message.header, self.max_age_ms) + received.ahead_ms

    def mark(self, received: ReceivedMessage) -> dict[str, str | int]:
        """Return what a script needs to mark and acknowledge a message."""
        return {**self.place(received), "group": received.group, "keep_ms": self.max_age_ms}

    def place(self, received: ReceivedMessage) -> dict[str, str | int]:
        """Return what is its own of :meth:`mark`: where the message stands, and what its mark is."""
        shard = received.entry.stream.shard
        return {
            "seen": in_its_shard(keys.seen(shard, received.sender, received.id)),
            "stream": in_its_shard(stream_key(received.entry.stream)),
            "conversation": in_its_shard(keys.conversation(shard, received.conversation)),
            "entry": received.entry.id,
            "digest": received.digest,
            "mark_ms": self.mark_ms(received),
        }

    def conversation_fault(self, fault: str, received: ReceivedMessage) -> CommandOutcome:
        """The rejection that a script means by `chain` or `limit`."""
        if fault == "chain":
            reason = (
                f"the chain ends at {received.first}, with which conversation {received.conversation} did not "
                "begin; carry the whole chain on, or leave the correlation-id out to begin a new conversation"
            )
            return rejected("conversation-chain", reason, received)
        reason = (
            f"conversation {received.conversation} has had {self.conversation_messages} messages; "
            "begin a new one, or raise conversation_max_messages in the settings"
        )
        return rejected("conversation-limit", reason, received)
