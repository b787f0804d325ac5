"""Letters whose effect the ledger has already: marked, counted and acknowledged, many in one script call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Arg, Batch
from orchestrator.router.letter import Letter
from orchestrator.router.steps import DONE, DUPLICATE, Limits, Outcome
from orchestrator.streams import ROUTER_GROUP, stream_key

#: Letters in one call: few enough that nobody else waits long for the server.
CHUNK: Final = 50
#: Types that a long conversation does not refuse: they end what others wait for.
NEVER_REFUSED: Final = frozenset({"task-completion", "error", "reply"})


class Marking:
    """Puts letters into a batch and reads what became of each."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def add(self, batch: Batch, letters: Sequence[Letter]) -> list[tuple[int, Sequence[Letter]]]:
        """Add calls for letters of any streams; where the answer of each call will stand, and for which letters.

        A call stays within one shard, so that it is one slot of a cluster.
        """
        by_shard: dict[int, list[Letter]] = {}
        for letter in letters:
            by_shard.setdefault(letter.entry.stream.shard, []).append(letter)
        calls: list[tuple[int, Sequence[Letter]]] = []
        for shard, found in by_shard.items():
            for start in range(0, len(found), CHUNK):
                part = found[start : start + CHUNK]
                self._call(batch, shard, part)
                calls.append((len(batch) - 1, part))
        return calls

    def _call(self, batch: Batch, shard: int, letters: Sequence[Letter]) -> None:
        limits = self._limits
        names: list[str] = []
        args: list[Arg] = [ROUTER_GROUP, limits.max_age_ms]
        for letter in letters:
            names += (
                stream_key(letter.entry.stream),
                keys.seen(shard, letter.id),
                keys.conversation(shard, letter.conversation),
            )
            most = 0 if letter.type in NEVER_REFUSED else limits.conversation_messages
            args += (letter.entry.id, limits.mark_ms(letter), letter.first, most)
        batch.script("route_done", names, args)

    def read(self, answer: Any, letters: Sequence[Letter]) -> list[Outcome]:
        """What became of each letter of a call."""
        return [
            self._outcome(verdict, letter) for verdict, letter in zip(answer.decode(), letters, strict=True)
        ]

    def _outcome(self, verdict: str, letter: Letter) -> Outcome:
        match verdict:
            case "d":
                return DONE
            case "x":
                return DUPLICATE
            case "c":
                return self._limits.conversation_fault("chain", letter)
        return self._limits.conversation_fault("limit", letter)
