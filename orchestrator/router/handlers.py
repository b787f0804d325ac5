"""What the router does with a letter of each type."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope.bodies import Escalation, ReviewRequest, TaskDelegation
from orchestrator.ids import is_session_id, shard_of
from orchestrator.ledger import Ledger
from orchestrator.policy.routing import LAUNCHES, RoutingTable
from orchestrator.router.commands import BEGUN, NOTED, Limits, Settled, Step, task_unknown
from orchestrator.router.external import ForeignLaunches, ForeignWords
from orchestrator.router.received import Letter, task_id_of
from orchestrator.router.session_resolver import Directory


class Acts:
    """Makes the act for a letter: the ledger's own start, a foreign program's word, or nothing but the mark."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        find_agent: Callable[[str], AgentRecord | None],
        table: RoutingTable,
        limits: Limits,
        shards: int,
    ) -> None:
        self._ledger = ledger
        self._directory = Directory(ledger)
        self._launches = ForeignLaunches(ledger, self._directory, table=table, limits=limits, shards=shards)
        self._words = ForeignWords(ledger, self._directory, limits=limits)
        self._find_agent = find_agent
        self._limits = limits
        self._operator = table.operator

    def prepare(self, letters: Sequence[Letter]) -> None:
        """Look up at once what the following acts need to know; most letters need nothing."""
        self._directory.load([letter for letter in letters if self._needs_directory(letter)])

    def _needs_directory(self, letter: Letter) -> bool:
        if letter.type in LAUNCHES:
            return not is_session_id(task_id_of(letter.body))
        return self._speaks_for_itself(letter)

    def act(self, letter: Letter) -> Step:
        """The step that carries the letter out."""
        body = letter.body
        if letter.type == "escalation" and letter.recipient == self._operator:
            return NOTED  # for people to see: there is nobody to start
        if letter.type in LAUNCHES:
            assert body is None or isinstance(body, (TaskDelegation, ReviewRequest, Escalation))
            task_id = task_id_of(body)
            if is_session_id(task_id):
                # In a stream of another shard it is a copy that somebody put there.
                here = shard_of(task_id) == letter.entry.stream.shard
                return BEGUN if here else Settled(task_unknown(task_id, letter))
            return self._launches.launch(letter, body)
        return self._words.word(letter) if self._speaks_for_itself(letter) else NOTED

    def _speaks_for_itself(self, letter: Letter) -> bool:
        """Whether the sender is a program outside of the stack, whose word is all there is."""
        sender = self._find_agent(letter.sender)
        return sender is not None and sender.foreign
