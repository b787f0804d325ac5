"""The reconciliation sweep: idempotent, safe in several processes, and the only thing that works by interval."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TypeVar

import redis

from orchestrator.agents.registry import OPERATOR
from orchestrator.clock import Clock, SystemClock
from orchestrator.crashpoints import failpoint
from orchestrator.errors import ServerUnavailable, UnknownSession
from orchestrator.ledger import CLOSED, Concurrency, Lease, Ledger, Session, SessionState
from orchestrator.log import Seldom, get_logger
from orchestrator.reconciler.delivery import Delivery
from orchestrator.reconciler.reaper.leases import LeaseWatch
from orchestrator.redisdb.client import is_outage
from orchestrator.redisdb.holders import Connected

#: Milliseconds after which a tree that was due and still awaited is looked at again.
_LOOK_AGAIN_MS = 600_000
#: Sweeps from one count of what is at work to the next.
_RECOUNT_EVERY = 100
#: Sessions flushed in one round trip.
_FLUSH_BATCH = 200

T = TypeVar("T")
R = TypeVar("R")

_log = get_logger()


@dataclass(kw_only=True)
class SweepReport:
    """What one sweep did."""

    released: int = 0  #: runs taken from lost workers
    redispatched: int = 0  #: queued runs made ready, retries whose time had come among them
    unblocked: int = 0  #: agents that had runs whose tree was at its limit, and has room again
    forgotten: int = 0  #: slots of workers that were killed
    rung: int = 0  #: agents whose workers were told again that there is work
    resumed: int = 0  #: sessions that had something waiting and no run
    closed: int = 0  #: closed sessions whose children were looked after
    settled: int = 0  #: owed results stored
    timers: int = 0
    pruned: int = 0  #: sessions of expired trees removed
    trimmed: int = 0  #: stream entries that every group had acknowledged

    def __add__(self, other: SweepReport) -> SweepReport:
        return SweepReport(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def anything(self) -> bool:
        """Whether it did anything at all."""
        return any(getattr(self, f.name) for f in fields(self))


class Reaper:
    """One copy of the reaper. Its parts that need other servers or keys are handed in."""

    def __init__(
        self,
        ledger: Ledger,
        delivery: Delivery,
        *,
        settle: Callable[[str], None],
        ring: Callable[[Sequence[str]], None] = lambda _: None,
        agents: Callable[[], Sequence[str]] = list,
        trim: Callable[[], int] = lambda: 0,
        concurrency: Concurrency | None = None,
        shards: int = 1,
        connected: Callable[[], Connected] = Connected,
        lease_s: float = 15,
        interval_s: float = 2,
        clock: Clock | None = None,
    ) -> None:
        self._ledger = ledger
        self._delivery = delivery
        self._settle = settle
        self._ring_workers = ring
        self._agents = agents
        self._trim = trim
        self._concurrency = concurrency
        self._connected = connected
        self._sweeps = 0
        self._shards = range(shards)
        self._clock = clock or SystemClock()
        self._lease_s = lease_s
        self._watch = LeaseWatch(self._clock, lease_s=lease_s)
        self._interval_s = interval_s
        self._seldom = Seldom()

    def run(self, stop: threading.Event) -> None:
        """Sweep until told to stop."""
        while not stop.is_set():
            swept = self.run_once()
            if swept.anything:
                _log.info("swept", **{f.name: v for f in fields(swept) if (v := getattr(swept, f.name))})
            stop.wait(self._interval_s)

    def run_once(self) -> SweepReport:
        """One sweep over every shard.

        Raises:
            redis.RedisError: Redis is away or takes no writes. What was seen of leases until then counts no more: nobody
                could renew one.
        """
        swept = SweepReport()
        try:
            for shard in self._shards:
                self._ledger.sweep.begin_sweep(shard)
        except redis.RedisError:
            self._watch = LeaseWatch(self._clock, lease_s=self._lease_s)
            raise
        ledger = self._ledger
        swept.released = self._each(self._dead, self._release)
        for shard in self._shards:
            swept.redispatched += self._each(partial(ledger.sweep.undispatched, shard), self._redispatch)
            swept.resumed += self._each(partial(self._waiting, shard), self._delivery.flush)
            swept.closed += self._each(partial(ledger.sweep.closing, shard), self._close)
            swept.settled += self._each(partial(ledger.sweep.unpublished_results, shard), self._settle_one)
            swept.timers += self._each(
                partial(ledger.sweep.due_timers, shard), partial(self._fire, shard, swept)
            )
        swept.unblocked = self._each(lambda: self._shards, self._unblock)
        swept.forgotten = self._each(lambda: self._shards, self._forget_slots)
        if self._sweeps % _RECOUNT_EVERY == 0:
            # Each transition sees to it by itself; nothing but damage makes this necessary.
            self._each(lambda: self._shards, self._ledger.approvals.drop_strays)
        self._sweeps += 1
        swept.rung = self._ring()
        swept.trimmed = self._each(lambda: ["streams"], lambda _: self._trim())
        return swept

    def _waiting(self, shard: int) -> list[list[str]]:
        """Sessions with something in their queue, as many together as are flushed in one round trip."""
        waiting = self._ledger.sweep.waiting(shard)
        return [waiting[n : n + _FLUSH_BATCH] for n in range(0, len(waiting), _FLUSH_BATCH)]

    def _each(self, find: Callable[[], Iterable[T]], act: Callable[[T], int]) -> int:
        """Act on each that is found, and add up; one that goes wrong is reported and holds up none of the others.

        Raises:
            redis.RedisError, OSError: Redis is away, and nothing can be done for any of them.
        """
        total = 0
        for thing in self._survive(find, getattr(getattr(find, "func", find), "__name__", find)) or ():
            total += self._survive(partial(act, thing), thing) or 0
        return total

    def _survive(self, call: Callable[[], R], about: object) -> R | None:
        """What a call returns; None where what it is about is damaged, which is said once in a while."""
        try:
            return call()
        except Exception as error:
            if is_outage(error):
                raise
            if self._seldom.due(f"{about}"):
                _log.error("sweep-failed", of=str(about), exc_info=error)
            return None

    def _dead(self) -> list[Lease]:
        # Who is connected is asked first: a holder that connects, takes a run and is asked for is not missed.
        connected = self._connected()
        return self._watch.dead(self.leases(), connected)

    def leases(self) -> list[Lease]:
        """Every run that is held, with its renewal counter as it stands."""
        return [lease for shard in self._shards for lease in self._ledger.sweep.leases(shard)]

    def _close(self, session: str) -> int:
        self._delivery.close(session)
        return 1

    def _settle_one(self, root: str) -> int:
        self._settle(root)
        return 1

    def _release(self, lease: Lease) -> int:
        outcome = self._ledger.release(lease)
        if outcome == "moved":
            return 0
        _log.warning("lease-lost", run=lease.run, session=lease.session, worker=lease.worker, outcome=outcome)
        failpoint("reaper.released")
        if outcome == "queued":
            self._redispatch(lease.run)
        return 1

    def _redispatch(self, run: str) -> int:
        ready = self._ledger.sweep.make_ready(run)
        if ready is None:
            return 0
        failpoint("reaper.redispatched")
        self._delivery.send([ready])
        return 1

    def _unblock(self, shard: int) -> int:
        """Runs whose tree was at its limit when they were to be taken, and is not any more."""
        return self._tell(self._concurrency.unblock(shard)) if self._concurrency is not None else 0

    def _forget_slots(self, shard: int) -> int:
        if self._concurrency is None:
            return 0
        # It takes time for each lease, and nothing but damage makes it necessary.
        recount = self._sweeps % _RECOUNT_EVERY == 0
        forgotten, wrong = self._concurrency.forget_slots(shard, recount=recount)
        if wrong:
            _log.error("at-work-miscounted", shard=shard, wrong=wrong)
        return forgotten

    def _ring(self) -> int:
        """Tell workers of ready runs that nobody takes: what told them of these was lost, or they were all busy."""
        agents = self._agents()
        return self._tell(
            [agent for shard in self._shards for agent in self._ledger.sweep.rings(shard, agents)]
        )

    def _tell(self, agents: Sequence[str]) -> int:
        """Ring the workers of these agents; how many agents that were."""
        if not agents:
            return 0
        try:
            self._ring_workers(agents)
        except ServerUnavailable as error:
            _log.warning("ring-failed", agents=agents, error=str(error))
            return 0
        return len(agents)

    def _fire(self, shard: int, swept: SweepReport, timer: tuple[str, str]) -> int:
        kind, identifier = timer
        limits = self._ledger.limits
        match kind:
            case "flush":
                self._delivery.flush([identifier])
                self._ledger.sweep.drop_due_timer(shard, kind, identifier)
            case "submit":
                if self._ledger.sweep.submit_due(identifier, sender=OPERATOR) == "submitted":
                    _log.info("scheduled-session-begun", session=identifier)
                    failpoint("reaper.submitted")
            case "review":
                self._ledger.stop(identifier, "the review was not done in time", state="failed")
                self._ledger.sweep.drop_due_timer(shard, kind, identifier)
            case "limit":
                self._ledger.stop(identifier, "it was not done within its time limit", state="failed")
                self._ledger.sweep.drop_due_timer(shard, kind, identifier)
            case "question":
                self._delivery.give_up(identifier, f"none came within {limits.question_ms / 1000:g} s")
                self._ledger.sweep.drop_due_timer(shard, kind, identifier)
            case "approval":
                self._delivery.expire_approval(identifier)
                self._ledger.sweep.drop_due_timer(shard, kind, identifier)
            case "expire":
                swept.pruned += self._expire(shard, identifier)
            case _:
                _log.warning("unknown-timer", kind=kind, id=identifier)
                self._ledger.sweep.drop_timer(shard, kind, identifier)
        return 1

    def _is_heard(self, tree: Sequence[Session]) -> bool:
        """Whether an heir in another tree, which is kept, has a callback whose large text is in this one."""
        own = {member.id for member in tree}
        elsewhere = [
            m for m in tree if m.parent and m.parent not in own and self._ledger.wholes.digests(m.id)
        ]
        heirs = self._ledger.find([member.parent for member in elsewhere])
        return any(heir.state != SessionState.DELETED for heir in heirs)

    def _expire(self, shard: int, root: str) -> int:
        """Remove a tree whose root has been over for its whole lifetime; one in use again gets another one."""
        try:
            session = self._ledger.session(root)
        except UnknownSession:
            self._ledger.sweep.drop_timer(shard, "expire", root)
            return 0
        over = session.state in CLOSED or session.state == SessionState.FINISHED
        age = self._ledger.server_ms() - session.ended_ms
        if not over or session.busy or age < self._ledger.limits.tree_ttl_ms:
            due = (session.ended_ms if over else self._ledger.server_ms()) + self._ledger.limits.tree_ttl_ms
            self._ledger.sweep.postpone_timer(shard, "expire", root, due)
            return 0
        members = self._ledger.tree(root)
        # The last of these decides: from then on nobody can use the tree again, in whatever moment he tries to.
        if _is_awaited(members) or self._is_heard(members) or not self._ledger.sweep.close_tree(members):
            due = self._ledger.server_ms() + min(self._ledger.limits.tree_ttl_ms, _LOOK_AGAIN_MS)
            self._ledger.sweep.postpone_timer(shard, "expire", root, due)
            return 0
        pruned = 0
        for member in reversed(members):
            if member.id != root:
                self._ledger.sweep.delete_session(member.id, root)
                pruned += 1
                failpoint("reaper.pruned")
        self._ledger.sweep.delete_session(root, root)
        return pruned + 1


def _is_awaited(tree: Sequence[Session]) -> bool:
    """Whether an heir is still owed the end of a session of this tree, or is itself in this tree."""
    own = {member.id for member in tree}
    for member in tree:
        if member.state in CLOSED:
            continue
        handed_on = member.parent not in own and member.parent != ""
        if member.owed or (handed_on and member.state != SessionState.FINISHED):
            return True
    return False
