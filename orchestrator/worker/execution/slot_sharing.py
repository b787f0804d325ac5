"""Sharing of a worker's slot while its run waits for somebody: the slot executes the runs that are waited for.

With one slot only, a run that waits for a child would hold the very slot that the child needs. So while it
waits, a thread beside it executes what is queued: first what the awaited session needs, then, after a while,
anything else that this worker serves, so that workers which wait for each other's agents do not stand still.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Self

from orchestrator import machine
from orchestrator.agents.definition import AgentDefinition
from orchestrator.errors import ServerUnavailable, WouldDeadlock
from orchestrator.ids import shard_of
from orchestrator.ledger import ItemState, Ledger, RunRef, RunState
from orchestrator.log import get_logger
from orchestrator.redisdb.client import retry_outages

#: Seconds that an awaited run may stay queued before the slot takes it: a free slot is faster.
SHARE_AFTER_S: Final = 0.1
#: Seconds that a run of another tree must have been queued.
SHARE_WITH_OTHERS_AFTER_S: Final = 2.0
#: Runs that may wait for one another in one slot, each in a thread.
MAX_DEPTH: Final = 500
#: Seconds without anything to do after which the thread ends.
LINGER_S: Final = 3.0
#: Seconds without anything to do for the awaited session after which other trees' runs will do.
OTHERS_AFTER_S: Final = 0.5
#: Sessions that are looked at to find what an awaited one needs, and runs of other trees.
_MAX_SESSIONS: Final = 200
_MAX_OTHERS: Final = 20
#: Seconds between two looks at what is needed, growing from the first to the second.
_LOOK_S: Final = (0.1, 1.0)
#: The same for the thread that a slot is lent to.
_THREAD_LOOK_S: Final = (0.02, 0.25)

_log = get_logger()


class Queued:
    """Finds queued runs that this worker could take."""

    def __init__(self, ledger: Ledger, serves: Callable[[str], bool]) -> None:
        self._ledger = ledger
        self._serves = serves

    def find(self, awaited: str, *, others: bool) -> RunRef | None:
        """Return a run that an awaited session needs; else, if ``others`` may have the slot, a run of any tree."""
        return self.needed_by(awaited) or (self.any(shard_of(awaited)) if others else None)

    def needed_by(self, session: str) -> RunRef | None:
        """A queued run of a session, or of what it waits for, as far down as that goes."""
        seen: set[str] = set()
        layer = [session]
        while layer and len(seen) < _MAX_SESSIONS:
            seen.update(layer)
            below: list[str] = []
            for found in self._ledger.find(layer):
                if found.run:
                    run = self._take(found.run)
                    if run is not None:
                        return run
                elif found.owed:
                    below += [i.child for i in self._ledger.items(found.id) if i.state is ItemState.OWED]
            layer = [child for child in dict.fromkeys(below) if child not in seen][
                : _MAX_SESSIONS - len(seen)
            ]
        return None

    def any(self, shard: int) -> RunRef | None:
        """A run of any tree that has been queued for a while."""
        latest = self._ledger.server_ms() - round(SHARE_WITH_OTHERS_AFTER_S * 1000)
        for run in self._ledger.queued_runs(shard, limit=_MAX_OTHERS):
            found = self._take(run, queued_before_ms=latest)
            if found is not None:
                return found
        return None

    def _take(self, run_id: str, *, queued_before_ms: int | None = None) -> RunRef | None:
        run = self._ledger.run(run_id)
        if run is None or run.state is not RunState.QUEUED:
            return None
        if run.claimable_ms and run.claimable_ms > self._ledger.server_ms():
            return None
        if queued_before_ms is not None and run.created_ms > queued_before_ms:
            return None
        found = self._ledger.find([run.session])
        if not found or not self._serves(found[0].agent):
            return None
        session = found[0]
        return RunRef(run=run.id, session=session.id, agent=session.agent, cause=run.cause)


def serves(catalogue: Mapping[str, AgentDefinition], queues: frozenset[str]) -> Callable[[str], bool]:
    """Tells whether a worker with these agents, reading these queues (none: all), may run an agent."""

    def judge(agent: str) -> bool:
        definition = catalogue.get(agent)
        if definition is None or definition.record.external:
            return False
        return not queues or definition.record.queue in queues

    return judge


class SlotSharing:
    """The lent slots of one slot of a worker; each run beside a waiting one has its own."""

    def __init__(self, *, queues: frozenset[str] = frozenset(), depth: int = 0) -> None:
        self._threads: list[threading.Thread] = []
        self._changing = threading.Lock()
        self.queues = queues
        #: How many runs of this slot wait already for what is executed now.
        self.depth = depth

    def check_depth(self, what: str) -> None:
        """Return if a run may wait for another one.

        Raises:
            WouldDeadlock: too many wait for one another in this slot already.
        """
        if self.depth >= MAX_DEPTH:
            raise WouldDeadlock(what, f"{MAX_DEPTH} runs wait for one another in this slot, and no more may")

    @property
    def busy(self) -> bool:
        """True while a thread that was lent a slot is still at work."""
        return any(thread.is_alive() for thread in self._threads)

    def start(self, work: Callable[[SlotSharing], None]) -> threading.Thread:
        """A thread that works in a lent slot.

        Raises:
            RuntimeError: the system gives no thread.
        """
        below = SlotSharing(queues=self.queues, depth=self.depth + 1)
        thread = machine.start_thread(partial(work, below), f"lent-slot-{below.depth}")
        with self._changing:  # threads of one agent may wait at the same time
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
        return thread

    def join(self) -> None:
        """Wait until every lent slot is given back."""
        for thread in self._threads:
            thread.join()


#: Executes a run in a lent slot.
Execute = Callable[[RunRef, SlotSharing], None]


class SharedSlot:
    """A wait of one run, and the thread to which its slot is lent meanwhile. Use it as a ``with`` block."""

    def __init__(self, slot_sharing: SlotSharing, queued: Queued, execute: Execute, *, awaited: str) -> None:
        self._slot_sharing = slot_sharing
        self._queued = queued
        self._execute = execute
        self._awaited = awaited
        self._thread: threading.Thread | None = None
        self._ended = machine.event()
        self._seen_at: float | None = None
        self._began_at = machine.monotonic()
        self._look_s = _LOOK_S[0]
        self._look_at = self._began_at + self._look_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # The thread ends when its present run does; that may be long after this one has its answer.
        self._ended.set()

    @property
    def next_look_s(self) -> float:
        """Seconds until :meth:`look` is worth calling again."""
        return max(0.0, self._look_at - machine.monotonic())

    def look(self) -> None:
        """Lend the slot if something that is needed waits for one; harmless to call at any time."""
        now = machine.monotonic()
        if now < self._look_at or (self._thread is not None and self._thread.is_alive()):
            return
        self._look_at = now + self._look_s
        self._look_s = min(self._look_s * 1.5, _LOOK_S[1])
        others = not self._slot_sharing.busy and now - self._began_at > SHARE_WITH_OTHERS_AFTER_S
        needed = self._queued.find(self._awaited, others=others)
        if needed is None:
            self._seen_at = None
            return
        if self._seen_at is None:
            self._seen_at = now
            self._look_s = _LOOK_S[0]
        elif now - self._seen_at >= SHARE_AFTER_S:
            self._share(needed)

    def _share(self, needed: RunRef) -> None:
        self._seen_at = None
        try:
            self._thread = self._slot_sharing.start(self._work)
        except RuntimeError as error:
            _log.warning("slot-not-lent", run=needed.run, awaited=self._awaited, error=str(error))
            return
        _log.info("slot-lent", run=needed.run, session=needed.session, awaited=self._awaited)

    def _work(self, slot_sharing: SlotSharing) -> None:
        """Execute what the awaited session needs, then anything else, until the wait ends or nothing is left."""
        idle_since, look_s = machine.monotonic(), _THREAD_LOOK_S[0]
        try:
            while not self._ended.wait(look_s) and machine.monotonic() - idle_since < LINGER_S:
                others = machine.monotonic() - idle_since > OTHERS_AFTER_S
                run = retry_outages(partial(self._queued.find, self._awaited, others=others), what="lent")
                if run is None:
                    look_s = min(look_s * 2, _THREAD_LOOK_S[1])
                    continue
                self._execute(run, slot_sharing)
                idle_since, look_s = machine.monotonic(), _THREAD_LOOK_S[0]
        except ServerUnavailable as error:
            _log.error("ledger-away", error=str(error))
        finally:
            slot_sharing.join()
