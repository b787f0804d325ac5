"""The loop of a slot that was notified: takes ready runs from the ledger and executes them, until there is none.

With a commit the next run is taken, in one round trip. The order is the ledger's: priority, then turns of the trees.
Nothing is taken once the worker was asked to end.

Short runs are executed together: one round trip commits up to 16 and takes as many. Each stays one run: a crash repeats
at most those that were not committed yet. Only runs in their first try, of agents whose runs were short lately, are held
together. Any other run is at work alone, so that one which is slow, or ends its process, takes none with it. When a
run turns out to be slow, the ends of the others are committed from another thread, and those not begun are given back.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from orchestrator import machine
from orchestrator.crashpoints import failpoint
from orchestrator.ledger import ClaimedRun, PollRequest, Slot
from orchestrator.log import get_logger
from orchestrator.redisdb.client import retry_outages
from orchestrator.worker.container import Runtime
from orchestrator.worker.execution.ending import claim_of_this_process
from orchestrator.worker.execution.printing import Verdict
from orchestrator.worker.execution.runner import HeldRun, commit_runs
from orchestrator.worker.execution.slot_sharing import SlotSharing

#: Of so many runs that a slot takes one is of a lower priority than the most urgent, so that nothing waits for ever.
LEAST_URGENT_EVERY: Final = 16
#: The priorities that then have their turn, by rank: low, normal, high.
_RANKS: Final = (3, 2, 1)
#: Of so many runs one comes from the next shard, so that work without an end in one does not starve another.
_OTHER_SHARD_EVERY: Final = 4

#: Seconds between the looks of a slot that finds nothing ready, before its task returns.
LINGER_S: Final = (0.0, 0.002, 0.004, 0.008, 0.016)

#: Runs that a slot holds at once at most.
MOST_TOGETHER: Final = 16
#: Seconds that an agent's short runs take on average, of which each new one counts for a part.
SHORT_S: Final = 0.01
_NEWEST_COUNTS: Final = 0.2
#: What a slot takes in one round trip is worth so many times SHORT_S of work at most.
TOGETHER: Final = 3
#: Seconds after which a run is slow.
SLOW_S: Final = 0.5

_log = get_logger()


class ShortRuns:
    """The runs that a slot holds: the one at work, those not begun, and those executed and not committed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        #: When the run at work is slow, on the monotonic clock.
        self.due_at = 0.0
        #: How many runs ended with each verdict.
        self.verdicts: Counter[Verdict] = Counter()
        #: Agent → the seconds that its runs take on average.
        self._takes_s: dict[str, float] = {}
        self._most = 1
        # Held while the two below change: another thread takes them from a slow run.
        self._changing = threading.Lock()
        self._waiting: deque[ClaimedRun] = deque()
        self._executed: list[HeldRun] = []
        self._clearing: threading.Thread | None = None

    # --- taking ------------------------------------------------------------------------------

    @property
    def short(self) -> frozenset[str]:
        """Return the agents whose runs are short."""
        return frozenset(agent for agent, took_s in self._takes_s.items() if took_s < SHORT_S)

    @property
    def wanted(self) -> int:
        """Return the number of runs to ask for: twice as many as last time, as long as there were so many.

        What they take together is little, as other slots may have nothing to do meanwhile.
        """
        together_s = TOGETHER * SHORT_S
        longest_s = max((self._takes_s[agent] for agent in self.short), default=together_s)
        return min(self._most, int(together_s / max(longest_s, SHORT_S / MOST_TOGETHER)))

    @property
    def waiting(self) -> int:
        """Return the number of runs that are held and were not begun."""
        return len(self._waiting)

    def take(self, polls: Sequence[PollRequest]) -> None:
        """Hold what was asked for and found; what is to be at work alone comes last."""
        found = [poll.held for poll in polls if poll.held is not None]
        self._most = min(MOST_TOGETHER, 2 * len(polls)) if len(found) == len(polls) else max(1, len(found))
        self._waiting.extend(sorted(found, key=self._is_alone))

    def _is_alone(self, held: ClaimedRun) -> bool:
        return held.run.attempt > 1 or held.session.agent not in self.short

    # --- executing and committing ------------------------------------------------------------

    def execute_next(self) -> HeldRun | None:
        """Execute the next run that is held; None if none is."""
        with self._changing:
            held = self._waiting.popleft() if self._waiting else None
            if held is None:
                return None
            alone = self._is_alone(held)
            if not alone and (self._waiting or self._executed):
                self.due_at = machine.monotonic() + SLOW_S
                self._runtime.beats.add(self)
        if alone:
            self._let_go()
        run, began_at, agent = HeldRun(self._runtime, held), machine.monotonic(), held.session.agent
        try:
            run.execute()
        finally:
            self._runtime.beats.remove(self)
        took_s = machine.monotonic() - began_at
        self._takes_s[agent] = took_s + (self._takes_s.get(agent, took_s) - took_s) * (1 - _NEWEST_COUNTS)
        with self._changing:
            self._executed.append(run)
        return run

    def commit(self, polls: Sequence[PollRequest] = (), *, shard: int = 0) -> None:
        """Commit what was executed, and ask for the next runs of a shard with that."""
        with self._changing:
            executed, self._executed = self._executed, []
        if not executed:
            return
        ends = commit_runs(self._runtime, executed, polls, shard=shard)
        failpoint("worker.settled")
        with self._changing:
            self.verdicts.update(end.verdict for end in ends)

    # --- letting go --------------------------------------------------------------------------

    def beat(self) -> None:
        """The run at work is slow: let go of the others, in a thread of its own, as leases are renewed in this one."""
        self._runtime.beats.remove(self)
        self._clearing = machine.start_thread(self._let_go, "short-runs")

    def close(self) -> None:
        """Hold nothing any more."""
        try:
            self._let_go()
        finally:
            if self._clearing is not None:
                self._clearing.join()

    def _let_go(self) -> None:
        """Commit what was executed, and give back what was not begun."""
        with self._changing:
            waiting, self._waiting = self._waiting, deque()
        self.commit()
        for held in waiting:
            run = HeldRun(dataclasses.replace(self._runtime, stopping=lambda: True), held)
            run.execute()
            commit_runs(self._runtime, [run])
            make_ready = partial(self._runtime.parts.ledger.sweep.make_ready, held.run.id)
            ready = retry_outages(make_ready, what="give-back")
            if ready is not None:
                self._runtime.wake_each([ready.agent])
        if waiting:
            _log.info("runs-given-back", runs=len(waiting))


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
        self._stays_until = _OTHER_SHARD_EVERY
        self._short_runs = ShortRuns(self._runtime)

    def run(self) -> Counter[Verdict]:
        """Execute ready runs; return how many ended with each verdict.

        Raises:
            ServerUnavailable: the ledger is out of reach, and the run that was to come next was not begun.
        """
        try:
            self._run()
        finally:
            self._short_runs.close()
            # What a run let be executed beside it, while it waited, may take longer than itself.
            self._slot_sharing.join()
        return self._short_runs.verdicts

    def _run(self) -> None:
        short_runs = self._short_runs
        polls, shard = self._take(woken=True) if self._agents else ([], 0)
        while polls:
            failpoint("worker.claimed")
            for poll in polls:
                self._note(poll)
            short_runs.take(polls)
            polls, following = [], shard
            while (run := short_runs.execute_next()) is not None:
                if short_runs.waiting and run.may_wait:
                    continue
                if not short_runs.waiting and self._is_next_shard_due():
                    following = (shard + 1) % self._runtime.parts.settings.shards
                elif not short_runs.waiting and run.may_be_followed:
                    polls = self._polls()
                short_runs.commit(polls, shard=shard)
            if not any(poll.held for poll in polls):
                polls, shard = self._take_soon(following)
                self._stays_until = self._taken + _OTHER_SHARD_EVERY

    def _take_soon(self, first: int) -> tuple[list[PollRequest], int]:
        """Return the next ready run, waiting a moment: what a run has started is often ready before a notification
        arrives.
        """
        for pause_s in LINGER_S:
            machine.sleep(pause_s)
            polls, shard = self._take(first=first)
            if polls:
                return polls, shard
        return [], first

    def _take(self, *, woken: bool = False, first: int = 0) -> tuple[list[PollRequest], int]:
        """Return the next ready run of any shard, and its shard; none once the worker is to end."""
        shards = self._runtime.parts.settings.shards
        for shard in ((first + n) % shards for n in range(shards)):
            if self._runtime.stopping():
                break
            poll = self._poll(0, self._agents, woken=woken)
            retry_outages(lambda poll=poll, shard=shard: self._ledger.claim_next(shard, poll), what="claim")  # type: ignore[misc]
            if poll.held is not None:
                return [poll], shard
        return [], first

    def _polls(self) -> list[PollRequest]:
        """Requests for the next run, and for short ones to be executed with it."""
        short = tuple(agent for agent in self._agents if agent in self._short_runs.short)
        return [self._poll(n, short if n else self._agents) for n in range(self._short_runs.wanted)]

    def _poll(self, number: int, agents: tuple[str, ...], *, woken: bool = False) -> PollRequest:
        # In a new order each time: no agent's runs come before another's for good.
        rank, turn = None, self._taken + number
        if turn % LEAST_URGENT_EVERY == LEAST_URGENT_EVERY - 1:
            turn, which = divmod(turn // LEAST_URGENT_EVERY, len(_RANKS))
            rank = _RANKS[which]
        turn %= len(agents)
        slot = Slot(
            # The ledger remembers for each name what it took last.
            name=f"{self._name}/{number}" if number else self._name,
            worker=self._worker,
            agents=agents[turn:] + agents[:turn],
            versions=self._versions,
        )
        return PollRequest(slot=slot, claim=claim_of_this_process(), woken=woken, rank=rank)

    def _is_next_shard_due(self) -> bool:
        return self._runtime.parts.settings.shards > 1 and self._taken >= self._stays_until

    def _note(self, poll: PollRequest) -> None:
        """Notify one more slot if more runs are ready: it notifies the next, until none sleeps or nothing is ready."""
        if poll.held is not None:
            self._taken += 1
            self._runtime.wake_each(poll.more)
