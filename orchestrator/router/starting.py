"""Messages that begin sessions which the ledger has already: the first run of each is queued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from orchestrator.ledger import Ledger, Start
from orchestrator.redisdb.scripts import Arg
from orchestrator.router.batching import BatchedCommand
from orchestrator.router.commands import (
    CommandOutcome,
    ConversationLimits,
    failed,
    outcome_of,
    task_taken,
    task_unknown,
)
from orchestrator.router.received import ReceivedMessage
from orchestrator.streams import stream_key


class Starting(BatchedCommand):
    """Starts the sessions that messages launch; the task-id of each is its session."""

    script: ClassVar[str] = "start"

    def __init__(self, ledger: Ledger, limits: ConversationLimits) -> None:
        self._ledger = ledger
        self._limits = limits

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
                return failed(self.script, answer[1].decode("utf-8", "replace"), received)
        return CommandOutcome(kind="done", dispatch=self._ledger.started(session, answer))
