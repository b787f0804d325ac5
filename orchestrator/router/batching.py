"""Letters that are carried out alike, many in one script call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from orchestrator.redisdb.scripts import Arg, Batch
from orchestrator.router.commands import Outcome
from orchestrator.router.received import Letter

#: Letters in one call: few enough that nobody else waits long for the server.
CHUNK: Final = 50


class Together(ABC):
    """Puts letters into a batch and reads what became of each."""

    #: The script that carries them out.
    script: ClassVar[str]

    def add(self, batch: Batch, letters: Sequence[Letter]) -> list[tuple[int, Sequence[Letter]]]:
        """Add calls for letters of any streams; where the answer of each call will stand, and for which letters.

        A call stays within one shard, so that it is one slot of a cluster, and acknowledges for one group.
        """
        alike: dict[tuple[int, str], list[Letter]] = {}
        for letter in letters:
            alike.setdefault((letter.entry.stream.shard, letter.group), []).append(letter)
        calls: list[tuple[int, Sequence[Letter]]] = []
        for (shard, _), found in alike.items():
            for start in range(0, len(found), CHUNK):
                part = found[start : start + CHUNK]
                batch.script(self.script, *self.call(shard, part))
                calls.append((len(batch) - 1, part))
        return calls

    @abstractmethod
    def call(self, shard: int, letters: Sequence[Letter]) -> tuple[Sequence[str], Sequence[Arg]]:
        """KEYS and ARGV for letters of one shard and one group."""

    @abstractmethod
    def read(self, answer: Any, letters: Sequence[Letter]) -> list[Outcome]:
        """What became of each letter of a call."""
