"""What a slot does once it is rung: takes ready runs from the ledger, one after the other, until there is none.

With the commit of one run the next one is taken, in one round trip. The order is the ledger's: priority, then
turns of the trees.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from orchestrator.crashpoints import reach
from orchestrator.errors import ServerUnavailable
from orchestrator.ledger import Claimed, Next, Slot
from orchestrator.log import get_logger
from orchestrator.worker.container import Runtime
from orchestrator.worker.execution.deaths import claim_of_this_process
from orchestrator.worker.execution.outcome import Verdict
from orchestrator.worker.execution.retry import persist
from orchestrator.worker.execution.runner import complete_run
from orchestrator.worker.execution.slot_sharing import Lending

#: Of so many runs that a slot takes one is the least urgent that waits, so that nothing waits for ever.
LEAST_URGENT_EVERY: Final = 16

#: Seconds between the looks of a slot that finds nothing ready, before its task returns.
LINGER_S: Final = (0.0, 0.002, 0.004, 0.008, 0.016)

_log = get_logger()


class SlotLoop:
    """One slot, from a ring until nothing is ready that it serves."""

    def __init__(
        self, runtime: Runtime, *, worker: str, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        queues = runtime.lending.queues if runtime.lending is not None else frozenset[str]()
        self._lending = Lending(queues=queues)
        self._runtime = dataclasses.replace(runtime, lending=self._lending)
        self._ledger = runtime.parts.ledger
        self._worker = worker
        self._stopping = stopping
        self._agents = runtime.served
        self._name = f"{worker}/{os.getpid()}/{threading.get_native_id()}"
        self._taken = 0

    def run(self) -> Counter[Verdict]:
        """Execute what is ready; what came of the runs.

        Raises:
            ServerUnavailable: the ledger is out of reach, and the run that was to come next was not begun.
        """
        try:
            return self._run()
        finally:
            # What a run let be executed beside it, while it waited, may take longer than itself.
            self._lending.join()

    def _run(self) -> Counter[Verdict]:
        verdicts: Counter[Verdict] = Counter()
        if not self._agents:
            return verdicts
        held, shard = self._take(rung=True)
        while held is not None:
            reach("worker.claimed")
            following = self._wish() if not self._stopping() else None
            verdicts[complete_run(self._runtime, held, following=following).verdict] += 1
            reach("worker.settled")
            if following is None:
                break
            if following.asked:
                self._tell_others(following)
            held = following.held
            if held is None:
                held, shard = self._take_soon(shard)
        return verdicts

    def _take_soon(self, first: int) -> tuple[Claimed | None, int]:
        """The next ready run, waiting a moment for one: what a run has set off is often ready before a ring arrives."""
        for pause_s in LINGER_S:
            if self._stopping():
                break
            time.sleep(pause_s)
            held, shard = self._take(first=first)
            if held is not None:
                return held, shard
        return None, first

    def _take(self, *, rung: bool = False, first: int = 0) -> tuple[Claimed | None, int]:
        """The next ready run of any shard, and its shard."""
        shards = self._runtime.parts.settings.shards
        for shard in ((first + n) % shards for n in range(shards)):
            wish = self._wish(rung=rung)
            persist(lambda wish=wish, shard=shard: self._ledger.claim_next(shard, wish), what="claim")  # type: ignore[misc]
            if wish.held is not None:
                self._tell_others(wish)
                return wish.held, shard
        return None, first

    def _wish(self, *, rung: bool = False) -> Next:
        self._taken += 1
        # In a new order each time: no agent's runs come before another's for good.
        turn = self._taken % len(self._agents)
        slot = Slot(name=self._name, worker=self._worker, agents=self._agents[turn:] + self._agents[:turn])
        return Next(
            slot=slot,
            claim=claim_of_this_process(),
            rung=rung,
            least_urgent=self._taken % LEAST_URGENT_EVERY == 0,
        )

    def _tell_others(self, wish: Next) -> None:
        """Where more is ready, ring one slot more: it rings the next, until none sleeps or nothing is ready."""
        if not wish.more or wish.held is None:
            return
        try:
            self._runtime.ring(wish.held.session.agent)
        except ServerUnavailable as error:
            _log.warning("ring-failed", agent=wish.held.session.agent, error=str(error))
