"""Waiting of a run under test: the script says at once what comes, and no real time passes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from orchestrator.ids import callback_id
from orchestrator.worker.context.waits import Blocking, Taken

#: Brings what an item id stands for, as the script says; False: the script says that it does not come.
Bring = Callable[[str, float | None], bool]


class ScriptedBlocking(Blocking):
    """The waiting of one run, whose answers are brought by ``bring``."""

    def __init__(self, *args: Any, bring: Bring, **given: Any) -> None:
        super().__init__(*args, **given)
        self._bring = bring

    def look(self, children: Sequence[str], *, timeout_s: float, known: Collection[str]) -> list[Taken]:
        """As a real run looks, after the script has brought what it has."""
        if timeout_s > 0:
            found = self._ended_or_asked(children, "wait")
            if not any(item.id not in known for item, _ in found):
                for child in children:
                    self._bring(callback_id(child), timeout_s)
        return super().look(children, timeout_s=0.0, known=known)

    def _wait(
        self, item: str, *, awaited: str, timeout_s: float | None, tend: Callable[[], bool]
    ) -> Taken | None:
        while True:
            taken = self.take(item, "wait")
            if taken is not None:
                return taken
            if not tend():
                return self.take(item, "give up")
            if not self._bring(item, timeout_s):
                return self.take(item, "give up")
