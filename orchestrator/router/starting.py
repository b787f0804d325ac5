"""Letters that begin sessions which the ledger has already: the first run of each is queued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from orchestrator.ledger import Ledger, Start
from orchestrator.redisdb.scripts import Arg
from orchestrator.router.batching import Together
from orchestrator.router.commands import (
    DUPLICATE,
    Limits,
    Outcome,
    failed,
    message_id_taken,
    task_taken,
    task_unknown,
)
from orchestrator.router.received import Letter, task_id_of
from orchestrator.streams import stream_key


class Starting(Together):
    """Starts the sessions that letters launch; the task-id of each is its session."""

    script: ClassVar[str] = "start"

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self._ledger = ledger
        self._limits = limits

    def call(self, shard: int, letters: Sequence[Letter]) -> tuple[Sequence[str], Sequence[Arg]]:
        """See :class:`Together`."""
        starts = [
            Start(
                session=task_id_of(letter.body),
                message=letter.id,
                sender=letter.sender,
                digest=letter.digest,
                recipient=letter.recipient,
                conversation=letter.conversation,
                stream=stream_key(letter.entry.stream),
                entry=letter.entry.id,
                mark_ms=self._limits.mark_ms(letter),
                review_due_ms=self._limits.review_due_ms(letter),
            )
            for letter in letters
        ]
        return self._ledger.start_call(shard, starts, group=letters[0].group, keep_ms=self._limits.max_age_ms)

    def read(self, answer: Any, letters: Sequence[Letter]) -> list[Outcome]:
        """See :class:`Together`."""
        return [self._outcome(one, letter) for one, letter in zip(answer, letters, strict=True)]

    def _outcome(self, answer: Any, letter: Letter) -> Outcome:
        session = task_id_of(letter.body)
        match answer[0]:
            case b"duplicate":
                return DUPLICATE
            case b"other":
                return message_id_taken(letter)
            case b"unknown":
                return task_unknown(session, letter)
            case b"task":
                return task_taken(session, session, letter)
            case b"error":
                return failed(self.script, answer[1].decode("utf-8", "replace"), letter)
        return Outcome(kind="done", dispatch=self._ledger.started(session, answer))
