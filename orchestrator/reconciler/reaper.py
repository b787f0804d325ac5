"""The reaper: finds lost leases, lost notifications and expired trees, and fixes or removes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, TypeVar

import redis

from orchestrator.agents.registry import OPERATOR
from orchestrator.crashpoints import failpoint
from orchestrator.errors import ServerUnavailable, UnknownSession
from orchestrator.ledger import CLOSED, OVERDUE, Concurrency, ItemState, Lease, Ledger, Session, SessionState
from orchestrator.log import RateLimitedLog, get_logger
from orchestrator.machine import Clock, SystemClock
from orchestrator.reconciler.delivery import Delivery
from orchestrator.redisdb.client import is_outage
from orchestrator.redisdb.holders import Connected
from orchestrator.runtime.service import still_at_work
from orchestrator.streams.consumer import SETTLED_S, LostConnections, mark_in

__all__ = ["Reaper"]


#: Milliseconds after which a tree that was due and is still needed is looked at again.
_LOOK_AGAIN_MS: Final = 600_000


def expire_tree(ledger: Ledger, shard: int, root: str) -> int:
    """Remove a tree that has had its whole lifetime, or look at it again later; how many sessions were removed."""
    sweep, lifetime_ms = ledger.sweep, ledger.limits.tree_ttl_ms
    try:
        session = ledger.session(root)
    except UnknownSession:
        sweep.drop_timer(shard, "expire", root)
        return 0
    now_ms = ledger.server_ms()
    finished = session.state in CLOSED or session.state == SessionState.FINISHED
    if not finished or session.busy or now_ms - session.ended_ms < lifetime_ms:
        sweep.postpone_timer(shard, "expire", root, (session.ended_ms if finished else now_ms) + lifetime_ms)
        return 0
    members = ledger.tree(root)
    # The last of these decides: from then on nobody can use the tree again.
    if _is_awaited(members) or _is_read_elsewhere(ledger, members) or not sweep.close_tree(members):
        sweep.postpone_timer(shard, "expire", root, now_ms + min(lifetime_ms, _LOOK_AGAIN_MS))
        return 0
    for member in reversed(members):
        if member.id != root:
            sweep.delete_session(member.id, root)
            still_at_work()
            failpoint("reaper.pruned")
    sweep.delete_session(root, root)
    return len(members)


def _is_awaited(tree: Sequence[Session]) -> bool:
    """Return True if a session of this tree still waits for a child, or an heir elsewhere for the end of one of them."""
    own = {member.id for member in tree}
    for member in tree:
        if member.state in CLOSED:
            continue
        handed_on = member.parent not in own and member.parent != ""
        if member.owed or (handed_on and member.state != SessionState.FINISHED):
            return True
    return False


def _is_read_elsewhere(ledger: Ledger, tree: Sequence[Session]) -> bool:
    """Return True if a large text of this tree is for a session of another one.

    An heir there has it as a callback as long as the heir is kept, or a child that was inherited from there has yet
    to read it.
    """
    own = {member.id for member in tree}
    speakers = [member for member in tree if ledger.large_texts.digests(member.id)]
    heirs = ledger.find([member.parent for member in speakers if member.parent and member.parent not in own])
    if any(heir.state != SessionState.DELETED for heir in heirs):
        return True
    children = {item.child for member in speakers for item in ledger.items(member.id)} - own - {""}
    return any(
        item.state in (ItemState.QUEUED, ItemState.CLAIMED) and text["session"] in own
        for child in ledger.find(sorted(children))
        for item in ledger.items(child.id)
        for text in item.large_texts
    )


#: Seconds for which the connection of a holder has to be missed, and its counter to stand still.
GONE_S: Final = 1.5


class LeaseWatch:
    """Observer of the leases so far."""

    def __init__(self, clock: Clock, *, lease_s: float) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._connections = LostConnections(clock, missed_s=GONE_S)
        self._last_look = clock.monotonic()
        #: Each lease by its run, and the seconds for which its counter was watched to stand still.
        self._seen: dict[str, tuple[Lease, float]] = {}
        #: The marks of holders that were seen connected.
        self._known: frozenset[str] = frozenset()

    def dead(self, leases: Iterable[Lease], connected: Connected = Connected()) -> list[Lease]:  # noqa: B008  (frozen)
        """Take note of every lease as it stands; those whose holders are dead."""
        now = self._clock.monotonic()
        watched_s = min(now - self._last_look, self._lease_s / 3)
        self._last_look = now
        before, self._seen = self._seen, {}
        for lease in leases:
            seen, still_s = before.get(lease.run, (None, 0.0))
            self._seen[lease.run] = lease, still_s + watched_s if seen == lease else 0.0
        marks = {mark_in(lease.claim) for lease, _ in self._seen.values()}
        lost = self._connections.lost(marks, connected)
        # After a restart of the server all connections are new, and holders are still coming back.
        kept = self._known & marks if connected.oldest_s >= SETTLED_S else frozenset()
        self._known = kept | connected.holders
        return [
            lease
            for lease, still_s in self._seen.values()
            if still_s >= self._patience_s(mark_in(lease.claim), lost)
        ]

    def _patience_s(self, mark: str, lost: set[str]) -> float:
        """Return the seconds for which the counter of a holder may stand still."""
        if mark not in lost:
            return self._lease_s
        return GONE_S if mark in self._known else self._lease_s / 2


#: Sweeps from one count of what is at work to the next.
_RECOUNT_EVERY = 100
#: Sessions flushed in one round trip.
_FLUSH_BATCH = 200

T = TypeVar("T")
R = TypeVar("R")

_log = get_logger()


@dataclass(kw_only=True)
class SweepReport:
    """Counts of one sweep."""

    released: int = 0  #: runs taken from lost workers
    redispatched: int = 0  #: queued runs made ready, retries whose time had come among them
    unblocked: int = 0  #: agents that had runs whose tree was at its limit, and has room again
    forgotten: int = 0  #: slots of workers that were killed
    woken: int = 0  #: agents whose workers were told again that there is work
    resumed: int = 0  #: sessions that had something waiting and no run
    closed: int = 0  #: closed sessions whose children were looked after
    settled: int = 0  #: outstanding results published
    timers: int = 0
    pruned: int = 0  #: sessions of expired trees removed
    trimmed: int = 0  #: stream entries that every group had acknowledged

    def __add__(self, other: SweepReport) -> SweepReport:
        added = asdict(other)
        return SweepReport(**{name: number + added[name] for name, number in asdict(self).items()})


class Reaper:
    """A copy of the reaper. Its parts that need other servers or keys are handed in."""

    def __init__(
        self,
        ledger: Ledger,
        delivery: Delivery,
        *,
        settle: Callable[[str], None],
        wake: Callable[[Sequence[str]], None] = lambda _: None,
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
        self._wake_workers = wake
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
        self._seldom = RateLimitedLog()

    def run(self, stop: threading.Event) -> None:
        """Sweep until told to stop."""
        while not stop.is_set():
            if done := {name: number for name, number in asdict(self.run_once()).items() if number}:
                _log.info("swept", **done)
            stop.wait(self._interval_s)

    def run_once(self) -> SweepReport:
        """Sweep every shard once.

        Raises:
            redis.RedisError: Redis is away or takes no writes. What was seen of leases until then counts no more: nobody
                could renew one.
        """
        swept, sweep, every = SweepReport(), self._ledger.sweep, self._each
        try:
            for shard in self._shards:
                sweep.begin_sweep(shard)
        except redis.RedisError:
            self._watch = LeaseWatch(self._clock, lease_s=self._lease_s)
            raise
        swept.released = every("leases", self._dead, self._release)
        for shard in self._shards:
            swept.redispatched += every("undispatched", partial(sweep.undispatched, shard), self._redispatch)
            swept.resumed += every("waiting", partial(self._waiting, shard), self._delivery.flush)
            swept.closed += every("closing", partial(sweep.closing, shard), self._delivery.close)
            swept.settled += every("results", partial(sweep.unpublished_results, shard), self._settle)
            swept.timers += every(
                "timers", partial(sweep.due_timers, shard), partial(self._fire, shard, swept)
            )
        if self._concurrency is not None:
            swept.unblocked = every(
                "blocked", lambda: self._shards, partial(self._unblock, self._concurrency)
            )
            swept.forgotten = every(
                "slots", lambda: self._shards, partial(self._forget_slots, self._concurrency)
            )
        if self._recounts:
            every("approvals", lambda: self._shards, self._ledger.approvals.drop_strays)
        swept.woken = every("wakeups", lambda: [self._agents()], self._wake)
        swept.trimmed = every("streams", lambda: ["streams"], lambda _: self._trim())
        self._sweeps += 1
        return swept

    @property
    def _recounts(self) -> bool:
        """True if this sweep also counts what each transition counts by itself; only damage makes that necessary."""
        return self._sweeps % _RECOUNT_EVERY == 0

    def _waiting(self, shard: int) -> list[list[str]]:
        """Sessions with something in their queue, as many together as are flushed in one round trip."""
        waiting = self._ledger.sweep.waiting(shard)
        return [waiting[n : n + _FLUSH_BATCH] for n in range(0, len(waiting), _FLUSH_BATCH)]

    def _each(self, what: str, find: Callable[[], Iterable[T]], act: Callable[[T], int | None]) -> int:
        """Act on each thing that is found; how many things were done. One that goes wrong holds up no other.

        Raises:
            redis.RedisError, OSError: Redis is away, and nothing can be done for any of them.
        """
        total = 0
        nothing: Iterable[T] = ()
        failed: int | None = 0
        for thing in self._survive(what, find, nothing):
            done = self._survive(f"{what}: {thing}", partial(act, thing), failed)
            total += 1 if done is None else done
        return total

    def _survive(self, about: str, call: Callable[[], R], otherwise: R) -> R:
        """Return what a call returns, or ``otherwise`` if records are damaged, which is reported once in a while."""
        still_at_work()
        try:
            return call()
        except Exception as error:
            if is_outage(error):
                raise
            if self._seldom.due(about):
                _log.error("sweep-failed", of=about, exc_info=error)
            return otherwise

    def _dead(self) -> list[Lease]:
        return self._watch.dead(self.leases(), self._connected())

    def leases(self) -> list[Lease]:
        """Return every run that is held, with its renewal counter as it stands."""
        return [lease for shard in self._shards for lease in self._ledger.sweep.leases(shard)]

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

    def _unblock(self, concurrency: Concurrency, shard: int) -> int:
        """Notify workers of runs whose tree was at its limit and has room again."""
        return self._tell(concurrency.unblock(shard))

    def _forget_slots(self, concurrency: Concurrency, shard: int) -> int:
        forgotten, wrong = concurrency.forget_slots(shard, recount=self._recounts)
        if wrong:
            _log.error("at-work-miscounted", shard=shard, wrong=wrong)
        return forgotten

    def _wake(self, agents: Sequence[str]) -> int:
        """Notify workers of ready runs that nobody takes: the first notification was lost, or all workers were busy."""
        return self._tell(
            [agent for shard in self._shards for agent in self._ledger.sweep.wakeups(shard, agents)]
        )

    def _tell(self, agents: Sequence[str]) -> int:
        """Notify the workers of these agents; return how many agents."""
        if not agents:
            return 0
        try:
            self._wake_workers(agents)
        except ServerUnavailable as error:
            _log.warning("notify-failed", agents=agents, error=str(error))
            return 0
        return len(agents)

    def _fire(self, shard: int, swept: SweepReport, timer: tuple[str, str]) -> None:
        kind, identifier = timer
        ledger, sweep = self._ledger, self._ledger.sweep
        match kind:
            case "flush":
                self._delivery.flush([identifier])
            case "submit":  # the submission drops its timer
                if sweep.submit_due(identifier, sender=OPERATOR) == "submitted":
                    _log.info("scheduled-session-begun", session=identifier)
                    failpoint("reaper.submitted")
                return
            case "review" | "limit":
                if ledger.stop(identifier, OVERDUE[kind], state="failed").outcome == "asked":
                    return  # the timer says of an answer that comes in the grace that it comes too late
            case "question":
                self._delivery.give_up(identifier, "its time is over")
            case "rejected":
                self._delivery.give_up(identifier, "the question cannot be authenticated")
            case "approval":
                self._delivery.expire_approval(identifier)
            case "expire":
                swept.pruned += expire_tree(ledger, shard, identifier)
                return
            case _:
                _log.warning("unknown-timer", kind=kind, id=identifier)
                sweep.drop_timer(shard, kind, identifier)
                return
        sweep.drop_due_timer(shard, kind, identifier)
