"""Messages whose effect the ledger has already: marked seen, counted and acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from orchestrator.agents.registry import OPERATOR, SYSTEM_AGENTS
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Arg
from orchestrator.router.batching import BatchedCommand
from orchestrator.router.commands import DONE, DUPLICATE, CommandOutcome, ConversationLimits, message_id_taken
from orchestrator.router.received import ENDING, ReceivedMessage
from orchestrator.streams import stream_key

#: Parts of the system that report, and take nobody into a conversation.
_REPORTERS: Final = SYSTEM_AGENTS - {OPERATOR}


class Marking(BatchedCommand):
    """Marks messages."""

    script: ClassVar[str] = "route_done"

    def __init__(self, limits: ConversationLimits) -> None:
        self._limits = limits

    def call(self, shard: int, messages: Sequence[ReceivedMessage]) -> tuple[Sequence[str], Sequence[Arg]]:
        """See :class:`BatchedCommand`."""
        limits = self._limits
        names: list[str] = []
        args: list[Arg] = [messages[0].group, limits.max_age_ms]
        for received in messages:
            names += (
                stream_key(received.entry.stream),
                keys.seen(shard, received.sender, received.id),
                keys.conversation(shard, received.conversation),
            )
            most = 0 if received.type in ENDING else limits.conversation_messages
            args += (received.entry.id, limits.mark_ms(received), received.first, most, received.digest)
            args.append(self._party(received))
        return names, args

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
                return self._limits.conversation_fault("chain", received)
        return self._limits.conversation_fault("limit", received)
