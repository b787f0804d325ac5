"""Letters whose effect the ledger has already: marked seen, counted and acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from orchestrator.agents.registry import OPERATOR, SYSTEM_AGENTS
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Arg
from orchestrator.router.batching import Together
from orchestrator.router.commands import DONE, DUPLICATE, Limits, Outcome, message_id_taken
from orchestrator.router.received import Letter
from orchestrator.streams import stream_key

#: Types that a long conversation does not refuse: they end what others wait for.
NEVER_REFUSED: Final = frozenset({"task-completion", "error", "reply"})
#: Parts of the system that report to whoever is concerned, and speak to nobody.
_REPORTERS: Final = SYSTEM_AGENTS - {OPERATOR}


class Marking(Together):
    """Marks letters."""

    script: ClassVar[str] = "route_done"

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def call(self, shard: int, letters: Sequence[Letter]) -> tuple[Sequence[str], Sequence[Arg]]:
        """See :class:`Together`."""
        limits = self._limits
        names: list[str] = []
        args: list[Arg] = [letters[0].group, limits.max_age_ms]
        for letter in letters:
            names += (
                stream_key(letter.entry.stream),
                keys.seen(shard, letter.sender, letter.id),
                keys.conversation(shard, letter.conversation),
            )
            most = 0 if letter.type in NEVER_REFUSED else limits.conversation_messages
            args += (letter.entry.id, limits.mark_ms(letter), letter.first, most, letter.digest)
            args.append(self._party(letter))
        return names, args

    @staticmethod
    def _party(letter: Letter) -> str:
        """The program outside of the stack that a letter takes into its conversation; or empty.

        A report of the router that something was refused takes nobody in.
        """
        return letter.program if letter.sender not in _REPORTERS else ""

    def read(self, answer: Any, letters: Sequence[Letter]) -> list[Outcome]:
        """See :class:`Together`."""
        return [
            self._outcome(verdict, letter) for verdict, letter in zip(answer.decode(), letters, strict=True)
        ]

    def _outcome(self, verdict: str, letter: Letter) -> Outcome:
        match verdict:
            case "d":
                return DONE
            case "x":
                return DUPLICATE
            case "o":
                return message_id_taken(letter)
            case "c":
                return self._limits.conversation_fault("chain", letter)
        return self._limits.conversation_fault("limit", letter)
