"""Execution: the steps of a round's letters, sent to the server together, and what came of each letter."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from orchestrator.ledger import Ledger
from orchestrator.policy.routing import LAUNCHES
from orchestrator.redisdb.client import refuses_everything
from orchestrator.router.already_applied import Marking
from orchestrator.router.batching import Together
from orchestrator.router.commands import Act, Begun, Noted, Outcome, failed
from orchestrator.router.external import Inboxes
from orchestrator.router.handlers import Acts
from orchestrator.router.received import Letter
from orchestrator.router.starting import Starting
from orchestrator.streams import StreamId


class Execution:
    """Carries letters out, as many as there are in one round trip."""

    def __init__(
        self, ledger: Ledger, *, acts: Acts, starting: Starting, marking: Marking, inboxes: Inboxes
    ) -> None:
        self._ledger = ledger
        self._inboxes = inboxes
        self._acts = acts
        self._starting = starting
        self._marking = marking

    def carry_out(self, letters: Sequence[Letter]) -> list[Outcome]:
        """What came of each letter. All steps go in one round trip; the answers decide.

        A letter that follows upon a launch in the same round goes in a second one, when the launch is done.
        """
        outcomes: list[Outcome] = []
        while letters:
            now, letters = _independent(letters)
            outcomes += self._at_once(now)
        return outcomes

    def _at_once(self, letters: Sequence[Letter]) -> list[Outcome]:
        batch = self._ledger.scripts.batch()
        self._acts.prepare(letters)
        outcomes: dict[tuple[StreamId, str], Outcome] = {}
        together: dict[Together, list[Letter]] = {self._starting: [], self._marking: []}
        acts: list[tuple[int, Letter, Act]] = []
        for letter in letters:
            match self._acts.act(letter):
                case Act() as step:
                    batch.script(step.script, step.keys, step.args)
                    acts.append((len(batch) - 1, letter, step))
                case Begun():
                    together[self._starting].append(letter)
                case Noted():
                    together[self._marking].append(letter)
                case step:
                    outcomes[letter.place] = step.outcome
        calls = [(kind, *call) for kind, found in together.items() for call in kind.add(batch, found)]
        answers = batch.execute()
        for place, letter, act in acts:
            fault = _fault(answers[place], act.script, letter)
            outcomes[letter.place] = fault or act.read(answers[place])
        for kind, place, part in calls:
            answer = answers[place]
            faults = [fault for letter in part if (fault := _fault(answer, kind.script, letter))]
            for letter, outcome in zip(part, faults or kind.read(answer, part), strict=True):
                outcomes[letter.place] = outcome
        self._deliver([letter for letter in letters if letter.program], outcomes)
        return [outcomes[letter.place] for letter in letters]

    def _deliver(self, letters: Sequence[Letter], outcomes: dict[tuple[StreamId, str], Outcome]) -> None:
        """Put what was carried out into the inboxes of the programs that it is for; only that acknowledges it."""
        done = [letter for letter in letters if outcomes[letter.place].kind != "rejected"]
        if not done:
            return
        for letter, answer in zip(done, self._inboxes.deliver(done), strict=True):
            if fault := _fault(answer, "route_inbox", letter):
                outcomes[letter.place] = fault


def _fault(answer: object, script: str, letter: Letter) -> Outcome | None:
    """What it means for a letter that its call failed; None: it did not."""
    if not isinstance(answer, Exception):
        return None
    if not isinstance(answer, redis.ResponseError) or refuses_everything(answer):
        raise answer  # no fault of the letter's
    return failed(script, answer, letter)


def _independent(letters: Sequence[Letter]) -> tuple[Sequence[Letter], Sequence[Letter]]:
    """The longest beginning in which no letter follows upon a launch among them, and the rest."""
    launches: set[str] = set()
    for number, letter in enumerate(letters):
        if launches and any(ref.lower() in launches for ref in letter.message.header.conversation_chain):
            return letters[:number], letters[number:]
        if letter.type in LAUNCHES:
            launches.add(letter.id)
    return letters, []
