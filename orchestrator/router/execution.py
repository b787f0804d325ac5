"""Execution: the steps of a round's letters, sent to the server together, and what came of each letter."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from orchestrator.ledger import Ledger
from orchestrator.log import get_logger
from orchestrator.policy.routing import LAUNCHES
from orchestrator.redisdb.client import refuses_everything
from orchestrator.router.acts import Acts
from orchestrator.router.intake import reject
from orchestrator.router.letter import Letter
from orchestrator.router.marking import Marking
from orchestrator.router.steps import Act, Noted, Outcome
from orchestrator.streams import StreamId


class Execution:
    """Carries letters out, as many as there are in one round trip."""

    def __init__(self, ledger: Ledger, *, acts: Acts, marking: Marking) -> None:
        self._ledger = ledger
        self._acts = acts
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
        noted: list[Letter] = []
        acts: list[tuple[int, Letter, Act]] = []
        for letter in letters:
            step = self._acts.act(letter)
            if isinstance(step, Act):
                for command in step.before:
                    batch.command(*command)
                batch.script(step.script, step.keys, step.args)
                acts.append((len(batch) - 1, letter, step))
            elif isinstance(step, Noted):
                noted.append(letter)
            else:
                outcomes[letter.place] = step.outcome
        calls = self._marking.add(batch, noted)
        answers = batch.execute()
        for place, letter, act in acts:
            fault = self._fault(answers[place], act.script, letter)
            outcomes[letter.place] = fault or act.read(answers[place])
        for place, part in calls:
            for letter, outcome in zip(part, self._read_marking(answers[place], part), strict=True):
                outcomes[letter.place] = outcome
        return [outcomes[letter.place] for letter in letters]

    def _read_marking(self, answer: object, letters: Sequence[Letter]) -> list[Outcome]:
        if not isinstance(answer, Exception):
            return self._marking.read(answer, letters)
        return [fault for letter in letters if (fault := self._fault(answer, "route_done", letter))]

    def _fault(self, answer: object, script: str, letter: Letter) -> Outcome | None:
        """What it means for a letter that its call failed; None: it did not."""
        if not isinstance(answer, Exception):
            return None
        if not isinstance(answer, redis.ResponseError) or refuses_everything(answer):
            raise answer  # no fault of the letter's
        get_logger().error("act-failed", script=script, message=letter.id, error=str(answer))
        rejection = reject("internal-error", f"{script}: {answer}", letter.message)
        return Outcome(kind="rejected", rejection=rejection)


def _independent(letters: Sequence[Letter]) -> tuple[Sequence[Letter], Sequence[Letter]]:
    """The longest beginning in which no letter follows upon a launch among them, and the rest."""
    launches: set[str] = set()
    for number, letter in enumerate(letters):
        if launches and any(ref.lower() in launches for ref in letter.message.header.conversation_chain):
            return letters[:number], letters[number:]
        if letter.type in LAUNCHES:
            launches.add(letter.id)
    return letters, []
