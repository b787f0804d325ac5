"""The loop of a slot that was notified: takes ready runs from the ledger, one after the other, until there is none.

With the commit of one run the next one is taken, in one round trip. The order is the ledger's: priority, then
turns of the trees. Nothing is taken once the worker was asked to end.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import Counter
from typing import Final

from orchestrator import machine
from orchestrator.crashpoints import failpoint
from orchestrator.ledger import ClaimedRun, PollRequest, Slot
from orchestrator.redisdb.client import retry_outages
from orchestrator.worker.container import Runtime
from orchestrator.worker.execution.ending import claim_of_this_process
from orchestrator.worker.execution.printing import Verdict
from orchestrator.worker.execution.runner import complete_run
from orchestrator.worker.execution.slot_sharing import SlotSharing

#: Of so many runs that a slot takes one is of a lower priority than the most urgent, so that nothing waits for ever.
LEAST_URGENT_EVERY: Final = 16
#: The priorities that then have their turn, by rank: low, normal, high.
_RANKS: Final = (3, 2, 1)
#: Of so many runs one comes from the next shard, so that work without an end in one does not starve another.
_OTHER_SHARD_EVERY: Final = 4

#: Seconds between the looks of a slot that finds nothing ready, before its task returns.
LINGER_S: Final = (0.0, 0.002, 0.004, 0.008, 0.016)


class SlotLoop:
    """A slot, from a notification until no run that it serves is ready; named after its thread unless a name is
    given.
    """

    def __init__(self, runtime: Runtime, *, worker: str, name: str = "") -> None:
        queues = runtime.slot_sharing.queues if runtime.slot_sharing is not None else frozenset[str]()
        self._slot_sharing = SlotSharing(queues=queues)
        self._runtime = dataclasses.replace(runtime, slot_sharing=self._slot_sharing)
        self._ledger = runtime.parts.ledger
        self._worker = worker
        self._agents = runtime.served
        self._versions = {agent: runtime.version_of(agent) for agent in self._agents}
        self._name = name or f"{worker}/{os.getpid()}/{threading.get_native_id()}"
        self._taken = 0

    def run(self) -> Counter[Verdict]:
        """Execute ready runs; return how many ended with each verdict.

        Raises:
            ServerUnavailable: the ledger is out of reach, and the run that was to come next was not begun.
        """
        try:
            return self._run()
        finally:
            # What a run let be executed beside it, while it waited, may take longer than itself.
            self._slot_sharing.join()

    def _run(self) -> Counter[Verdict]:
        verdicts: Counter[Verdict] = Counter()
        if not self._agents:
            return verdicts
        held, shard = self._take(woken=True)
        while held is not None:
            failpoint("worker.claimed")
            following = self._poll()
            if self._is_next_shard_due():
                following.asked = True  # it is not taken with the commit, which knows one shard only
                shard = (shard + 1) % self._runtime.parts.settings.shards
            verdicts[complete_run(self._runtime, held, following=following).verdict] += 1
            failpoint("worker.settled")
            self._note(following)
            held = following.held
            if held is None:
                held, shard = self._take_soon(shard)
        return verdicts

    def _take_soon(self, first: int) -> tuple[ClaimedRun | None, int]:
        """Return the next ready run, waiting a moment: what a run has started is often ready before a notification
        arrives.
        """
        for pause_s in LINGER_S:
            machine.sleep(pause_s)
            held, shard = self._take(first=first)
            if held is not None:
                return held, shard
        return None, first

    def _take(self, *, woken: bool = False, first: int = 0) -> tuple[ClaimedRun | None, int]:
        """Return the next ready run of any shard, and its shard; none once the worker is to end."""
        shards = self._runtime.parts.settings.shards
        for shard in ((first + n) % shards for n in range(shards)):
            if self._runtime.stopping():
                break
            poll = self._poll(woken=woken)
            retry_outages(lambda poll=poll, shard=shard: self._ledger.claim_next(shard, poll), what="claim")  # type: ignore[misc]
            if poll.held is not None:
                self._note(poll)
                return poll.held, shard
        return None, first

    def _poll(self, *, woken: bool = False) -> PollRequest:
        # In a new order each time: no agent's runs come before another's for good.
        rank, turn = None, self._taken
        if turn % LEAST_URGENT_EVERY == LEAST_URGENT_EVERY - 1:
            turn, which = divmod(turn // LEAST_URGENT_EVERY, len(_RANKS))
            rank = _RANKS[which]
        turn %= len(self._agents)
        slot = Slot(
            name=self._name,
            worker=self._worker,
            agents=self._agents[turn:] + self._agents[:turn],
            versions=self._versions,
        )
        return PollRequest(
            slot=slot,
            claim=claim_of_this_process(),
            woken=woken,
            rank=rank,
        )

    def _is_next_shard_due(self) -> bool:
        shards = self._runtime.parts.settings.shards
        return shards > 1 and self._taken % _OTHER_SHARD_EVERY == _OTHER_SHARD_EVERY - 1

    def _note(self, poll: PollRequest) -> None:
        """Notify one more slot if more runs are ready: it notifies the next, until none sleeps or nothing is ready."""
        if poll.held is None:
            return
        self._taken += 1
        self._runtime.wake_each(poll.more)
