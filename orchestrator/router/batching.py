"""Messages that are carried out alike, many in one script call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from orchestrator.redisdb.scripts import Arg, Batch
from orchestrator.router.commands import CommandOutcome
from orchestrator.router.received import ReceivedMessage

#: Messages in one call: few enough that nobody else waits long for the server.
CHUNK: Final = 50


class BatchedCommand(ABC):
    """Puts messages into a batch and reads what became of each."""

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
        """What became of each message of a call."""
