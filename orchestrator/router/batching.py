"""Messages that are carried out alike, many in one script call: those that begin sessions, and those to be marked."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, ClassVar, Final

import redis

from orchestrator import machine
from orchestrator.agents.registry import OPERATOR, SYSTEM_AGENTS
from orchestrator.envelope.message_types import TERMINAL_TYPES
from orchestrator.ledger import Ledger, Start
from orchestrator.redisdb import keys
from orchestrator.redisdb.all_keys import SharedKeys
from orchestrator.redisdb.scripts import Arg, Batch, request
from orchestrator.router.commands import (
    DONE,
    DUPLICATE,
    CommandOutcome,
    ConversationLimits,
    failed,
    message_id_taken,
    outcome_of,
    task_taken,
    task_unknown,
)
from orchestrator.router.received import ReceivedMessage, Rejection
from orchestrator.streams import Entry, stream_key

#: Messages in one call: few enough that nobody else waits long for the server.
CHUNK: Final = 50
#: Parts of the system that report, and take nobody into a conversation.
_REPORTERS: Final = SYSTEM_AGENTS - {OPERATOR}


class BatchedCommand(ABC):
    """Puts messages into a batch and reads the outcome of each."""

    #: The script that carries them out.
    script: ClassVar[str]

    def add(
        self, batch: Batch, messages: Sequence[ReceivedMessage]
    ) -> list[tuple[int, Sequence[ReceivedMessage]]]:
        """Add calls for messages of any streams; where the answer of each call will stand, and for which messages.

        A call stays within one shard, so that it is one slot of a cluster, and acknowledges for one group.
        """
        alike: dict[tuple[int, str], list[ReceivedMessage]] = {}
        for received in messages:
            alike.setdefault((received.entry.stream.shard, received.group), []).append(received)
        calls: list[tuple[int, Sequence[ReceivedMessage]]] = []
        for (shard, _), found in alike.items():
            for start in range(0, len(found), CHUNK):
                part = found[start : start + CHUNK]
                batch.script(self.script, *self.call(shard, part))
                calls.append((len(batch) - 1, part))
        return calls

    @abstractmethod
    def call(self, shard: int, messages: Sequence[ReceivedMessage]) -> tuple[Sequence[str], Sequence[Arg]]:
        """KEYS and ARGV for messages of one shard and one group."""

    @abstractmethod
    def read(self, answer: Any, messages: Sequence[ReceivedMessage]) -> list[CommandOutcome]:
        """Return the outcome of each message of a call."""


class Starting(BatchedCommand):
    """Starts the sessions that messages launch; the task-id of each is its session."""

    script: ClassVar[str] = "start"

    def __init__(self, ledger: Ledger, limits: ConversationLimits, shared: SharedKeys) -> None:
        self._ledger = ledger
        self._limits = limits
        self._shared = shared

    def call(self, shard: int, messages: Sequence[ReceivedMessage]) -> tuple[Sequence[str], Sequence[Arg]]:
        """See :class:`BatchedCommand`."""
        starts = [
            Start(
                session=received.task_id,
                message=received.id,
                sender=received.sender,
                digest=received.digest,
                recipient=received.recipient,
                conversation=received.conversation,
                stream=stream_key(received.entry.stream),
                entry=received.entry.id,
                mark_ms=self._limits.mark_ms(received),
                review_due_ms=self._limits.review_due_ms(received),
            )
            for received in messages
        ]
        return self._ledger.start_call(
            shard, starts, group=messages[0].group, keep_ms=self._limits.max_age_ms
        )

    def read(self, answer: Any, messages: Sequence[ReceivedMessage]) -> list[CommandOutcome]:
        """See :class:`BatchedCommand`."""
        return [self._outcome(one, received) for one, received in zip(answer, messages, strict=True)]

    def _outcome(self, answer: Any, received: ReceivedMessage) -> CommandOutcome:
        session = received.task_id
        if known := outcome_of(answer[0], received):
            return known
        match answer[0]:
            case b"unknown":
                return task_unknown(session, received)
            case b"task":
                return task_taken(session, session, received)
            case b"error":
                error = redis.ResponseError(answer[1].decode("utf-8", "replace"))
                if self._shared.hinder(error):
                    raise error
                return failed(self.script, error, received)
        return CommandOutcome(kind="done", dispatch=self._ledger.started(session, answer))


class Marking(BatchedCommand):
    """Marks messages."""

    script: ClassVar[str] = "route_done"

    def __init__(self, limits: ConversationLimits) -> None:
        self.limits = limits

    def call(self, shard: int, messages: Sequence[ReceivedMessage]) -> tuple[Sequence[str], Sequence[Arg]]:
        """See :class:`BatchedCommand`."""
        limits = self.limits
        rows = [
            {
                **limits.place(received),
                "first": received.first,
                "most": 0 if received.type in TERMINAL_TYPES else limits.conversation_messages,
                "program": self._party(received),
            }
            for received in messages
        ]
        body = request(group=messages[0].group, keep_ms=limits.max_age_ms, messages=rows)
        return [keys.totals(shard)], [body]

    @staticmethod
    def _party(received: ReceivedMessage) -> str:
        """The external program that a message takes into its conversation; or empty."""
        return received.program if received.sender not in _REPORTERS else ""

    def read(self, answer: Any, messages: Sequence[ReceivedMessage]) -> list[CommandOutcome]:
        """See :class:`BatchedCommand`."""
        return [
            self._outcome(verdict, received)
            for verdict, received in zip(answer.decode(), messages, strict=True)
        ]

    def _outcome(self, verdict: str, received: ReceivedMessage) -> CommandOutcome:
        match verdict:
            case "d":
                return DONE
            case "x":
                return DUPLICATE
            case "o":
                return message_id_taken(received)
            case "c":
                return self.limits.conversation_fault("chain", received)
        return self.limits.conversation_fault("limit", received)


#: How many entries, and how many bytes of them, are held at most.
MOST: Final = 10_000
MOST_BYTES: Final = 32 * 1024 * 1024
#: Entries that are given up in one round trip.
AT_ONCE: Final = 256

Refusal = tuple[Entry, Rejection]


class RefusalBuffer:
    """The refused entries that one router still has to give up, the oldest first."""

    def __init__(self, *, most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._refused: deque[Refusal] = deque()
        self._bytes = 0
        self._most = most
        self._most_bytes = most_bytes

    def __len__(self) -> int:
        return len(self._refused)

    @property
    def full(self) -> bool:
        """True if some entries must be given up before more are read."""
        return len(self._refused) >= self._most or self._bytes >= self._most_bytes

    def add(self, entry: Entry, rejection: Rejection) -> None:
        """Hold an entry that was refused."""
        self._refused.append((entry, rejection))
        self._bytes += len(entry.data or b"")

    def first(self) -> Sequence[Refusal]:
        """The entries to give up next."""
        return list(islice(self._refused, AT_ONCE))

    def drop(self, number: int) -> None:
        """The first ``number`` entries were given up."""
        for _ in range(number):
            entry, _rejection = self._refused.popleft()
            self._bytes -= len(entry.data or b"")


#: Reports that are not buffered for longer.
MANY: Final = 64
#: Seconds for which a report is buffered at most.
REPORT_BUFFER_S: Final = 0.1


class ReportBuffer:
    """Buffer of one router; it holds these entries like any that it has read."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._until = 0.0

    def put(self, entries: Sequence[Entry]) -> list[Entry]:
        """Buffer what nobody waits for; returns the others of ``entries``, in their order."""
        applied = [entry for entry in entries if entry.already_applied]
        if applied and not self._entries:
            self._until = machine.monotonic() + REPORT_BUFFER_S
        self._entries += applied
        return [entry for entry in entries if not entry.already_applied]

    def due(self) -> Sequence[Entry]:
        """Return the entries to route now: all, once there are many or the time of the first is up."""
        many = len(self._entries) >= MANY
        return self._entries if many or machine.monotonic() >= self._until else ()

    def all(self) -> Sequence[Entry]:
        """Everything that is buffered."""
        return self._entries

    def clear(self) -> None:
        """All of it was routed."""
        self._entries = []

    def wait_ms(self, block_ms: int) -> int:
        """Return how long to wait for new entries, at most ``block_ms``, in milliseconds; 0: not at all."""
        if not self._entries:
            return block_ms
        return min(block_ms, max(0, math.ceil((self._until - machine.monotonic()) * 1000)))
