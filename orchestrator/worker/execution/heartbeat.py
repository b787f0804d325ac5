"""Keeps the lease of a run while its agent works, hears when the agent is to stop, and tells that the slot is present.

The renewal is done by another thread, so that an agent that computes or sleeps keeps its run. A stop, by a user
or because the run has used up its time, is first a request: the agent's next effect raises. One that does not
stop within the grace period is ended from here: its run is committed, and its process goes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import threading
from collections.abc import Callable
from typing import Final, Protocol, Self

import redis
from billiard.process import current_process

from orchestrator import machine
from orchestrator.errors import ClaimLost, SessionStopped
from orchestrator.ledger import OVERDUE, Claim, Ledger
from orchestrator.log import get_logger
from orchestrator.redisdb.holders import connect_holder

#: Seconds between two looks of a process that has nothing due.
_IDLE_S: Final = 5.0

_log = get_logger()


class Beat(Protocol):
    """Something that is to be done again and again."""

    #: When it is due, on the monotonic clock.
    due_at: float

    def beat(self) -> None:
        """Do it, without waiting for long, and say in ``due_at`` when it is due next."""
        ...


class Beats(Protocol):
    """A scheduler of beats."""

    def add(self, beat: Beat) -> None:
        """Carry this out from now on whenever it is due."""
        ...

    def remove(self, beat: Beat) -> None:
        """Carry this out no more; it may be under way at this moment."""
        ...


class Ticker:
    """The beats of one process, and the thread that carries them out."""

    def __init__(self) -> None:
        self.reset()
        # A fork has none of its parent's threads.
        os.register_at_fork(after_in_child=self.reset)

    def reset(self) -> None:
        """Forget every beat, and the thread."""
        self._beats: set[Beat] = set()
        self._changed = threading.Condition()
        self._looks_at = 0.0
        self._thread: threading.Thread | None = None

    def add(self, beat: Beat) -> None:
        """Carry this out from now on whenever it is due."""
        with self._changed:
            self._beats.add(beat)
            if self._thread is None:
                self._thread = machine.start_thread(self._run, "ticker")
            elif beat.due_at < self._looks_at:
                self._changed.notify()

    def remove(self, beat: Beat) -> None:
        """Carry this out no more; it may be under way at this moment."""
        with self._changed:
            self._beats.discard(beat)

    def _run(self) -> None:
        while True:
            with self._changed:
                now = machine.monotonic()
                due = [beat for beat in self._beats if beat.due_at <= now]
                if not due:
                    # With nothing to do it looks up now and then, so that the next run need not wake it.
                    self._looks_at = min([now + _IDLE_S, *(beat.due_at for beat in self._beats)])
                    self._changed.wait(self._looks_at - now)
            for beat in due:
                try:
                    beat.beat()
                except Exception:  # noqa: BLE001  (what is due for one run must not end the others')
                    _log.exception("beat-failed")
                    beat.due_at = machine.monotonic() + 1.0


#: That of this process.
ticker: Final = Ticker()


class ClaimStatus:
    """Status of a claim: may its run go on? Shared by its agent and its heartbeat."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.lost = False  #: whether the run belongs to somebody else by now, or has ended
        self._stop_reason = ""
        self.timed_out = False  #: whether it was a time limit that asked it to stop
        #: When the run has used up its time, on the monotonic clock, and the seconds that it had.
        self.ends_at = self.time_limit_s = math.inf

    @property
    def stop_reason(self) -> str:
        """The reason why the run is to stop; empty while it may go on."""
        return self._stop_reason or ("another worker has it" if self.lost else "")

    def is_too_late(self) -> bool:
        """Return True if the run has used up its time; then it is also asked to stop."""
        if machine.monotonic() >= self.ends_at:
            self.ask_to_stop(f"it ran longer than its time limit of {self.time_limit_s:g} s", timed_out=True)
            return True
        return False

    @property
    def left_s(self) -> float:
        """Seconds that the run may still take."""
        return max(0.0, self.ends_at - machine.monotonic())

    def ask_to_stop(self, reason: str, *, timed_out: bool = False) -> None:
        """Ask the agent to stop; the first reason counts."""
        if not self._stop_reason:
            self.timed_out = timed_out
            self._stop_reason = reason

    def check(self) -> None:
        """Return if the run may go on.

        Raises:
            ClaimLost: another worker has it, or it has ended.
            SessionStopped: it was asked to stop.
        """
        if self.lost:
            raise ClaimLost(self.claim.run)
        if self._stop_reason:
            raise SessionStopped(self.claim.session, self._stop_reason)


class Heartbeat:
    """Renewal of one lease. Use it as a ``with`` block around the agent's work."""

    def __init__(
        self,
        ledger: Ledger,
        claim_status: ClaimStatus,
        *,
        interval_s: float,
        time_limit_s: float,
        grace_s: float,
        end: Callable[[str], None],
        beats: Beats,
    ) -> None:
        self._ledger = ledger
        self._claim = claim_status.claim
        self._claim_status = claim_status
        self._interval_s = interval_s
        self._ends_at = claim_status.ends_at = machine.monotonic() + time_limit_s
        claim_status.time_limit_s = time_limit_s
        self._grace_s = grace_s
        self._end = end
        self._beats = beats
        self._kill_at = 0.0
        self._ended = False
        self._ending: threading.Thread | None = None
        # Held during a beat, so that none is under way once the run has ended.
        self._beating = threading.Lock()
        #: When the next beat is due, on the monotonic clock.
        self.due_at = self._next_due()

    def __enter__(self) -> Self:
        self._beats.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._beats.remove(self)
        with self._beating:
            self._ended = True
        if self._ending is not None:
            self._ending.join()

    def _next_due(self) -> float:
        now = machine.monotonic()
        return now + min(self._interval_s, max(0.05, self._ends_at - now))

    def beat(self) -> None:
        """Renew the lease, and see to it that the run keeps to its time."""
        with self._beating:
            if self._ended:
                return
            if not self._claim_status.lost:
                self._renew()
            now = machine.monotonic()
            if self._claim_status.is_too_late() or self._claim_status.stop_reason:
                self._kill_at = self._kill_at or now + self._grace_s
                self._ends_at = self._kill_at  # the next beat comes when the grace has passed, if not before
                if now >= self._kill_at:
                    self._ended = True
                    self._beats.remove(self)
                    # In a thread of its own: its commit waits for a ledger that is away, and other leases are renewed here.
                    reason = self._claim_status.stop_reason
                    self._ending = machine.start_thread(lambda: self._end(reason), "forced-end")
            self.due_at = self._next_due()

    def _renew(self) -> None:
        try:
            renewal = self._ledger.renew(self._claim)
        except (redis.RedisError, OSError) as error:
            # While Redis is away nobody else can take the run either.
            _log.warning("renewal-failed", run=self._claim.run, error=str(error))
            return
        if not renewal.held:
            _log.warning("claim-lost", run=self._claim.run, session=self._claim.session)
            self._claim_status.lost = True
        elif renewal.stop:
            self._claim_status.ask_to_stop(renewal.stop, timed_out=renewal.stop in OVERDUE.values())


#: Seconds between two looks whether the connection is still there; half of what the reaper misses it for.
_EVERY_S: Final = 0.7
#: Seconds after which an answer is not waited for: leases are renewed by the same thread.
_TIMEOUT_S: Final = 2.0
#: A process that stands still for so many leases has lost its runs, however loaded the machine is, and not less than so
#: many seconds.
_STANDS_STILL_LEASES: Final = 2
_LEAST_STANDSTILL_S: Final = 20.0


class _Liveness:
    def __init__(self, url: str, mark: str, lease_s: float) -> None:
        self.due_at = 0.0
        self._ends_after_s = max(_STANDS_STILL_LEASES * lease_s, _LEAST_STANDSTILL_S)
        self._armed_until = 0.0
        self._client = connect_holder(url, mark, timeout_s=_TIMEOUT_S)

    def beat(self) -> None:
        if (now := machine.monotonic()) >= self._armed_until and current_process().name != "MainProcess":
            # A thread without the interpreter's lock ends the process; the last words in its log say where it stood.
            faulthandler.dump_traceback_later(self._ends_after_s, exit=True, file=2)
            self._armed_until = now + self._ends_after_s / 4
        # Where the server is away there is nobody to show anything; the next ping connects again.
        with contextlib.suppress(redis.RedisError, OSError):
            self._client.ping()
        self.due_at = machine.monotonic() + _EVERY_S


_liveness: _Liveness | None = None
_lock = threading.Lock()


def show(url: str, lease_s: float) -> None:
    """Be connected, from now on and for as long as this process lives; a second call does nothing."""
    global _liveness  # noqa: PLW0603
    with _lock:
        if _liveness is not None:
            return
        liveness = _liveness = _Liveness(url, machine.own_mark(), lease_s)
    # Before the first run is taken: a holder that was never seen is not missed.
    liveness.beat()
    ticker.add(liveness)


def _forget_the_parents_liveness() -> None:
    """A fork shows itself; another thread may have held the lock when it was made."""
    global _liveness, _lock
    _liveness, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_the_parents_liveness)
