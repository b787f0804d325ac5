"""Consumes `session_stop` events; any number of copies, each restartable at any moment.

An event is acknowledged last. What a dead copy left is taken over, and since the ledger decides and not the
event, an event handled twice, late or out of order does nothing wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import redis

from orchestrator.crashpoints import failpoint
from orchestrator.errors import KeyringError
from orchestrator.ids import is_session_id
from orchestrator.log import RateLimitedLog, get_logger
from orchestrator.machine import Clock, SystemClock
from orchestrator.reconciler.delivery import Delivery
from orchestrator.redisdb.client import is_outage
from orchestrator.streams import SESSION_EVENTS, Consumer, Entry, Portion, RedisStreams, ledger_streams

__all__ = ["CallbackService"]


GROUP = "callbacks"
#: Events taken at once.
BATCH = 200
#: How long to wait for a first event, which is also how long a stop may go unnoticed.
BLOCK_MS = 1000
#: Seconds to wait for further events, once there was one.
LINGER_S = 0.003
#: Seconds between two looks at the timers while events keep coming.
TIMERS_EVERY_S = 0.05
#: Milliseconds after which events that another copy holds are taken over.
TAKE_OVER_MS = 5_000

#: The state that a stop event asks for → the state that the session ends in; else `stopped`.
_END: Mapping[str, Literal["stopped", "failed", "deleted"]] = {"failed": "failed", "deleted": "deleted"}

_log = get_logger()


class CallbackService:
    """A copy of the callback service."""

    def __init__(
        self,
        client: redis.Redis,
        delivery: Delivery,
        *,
        consumer: str,
        shards: int = 1,
        take_over_ms: int = TAKE_OVER_MS,
        clock: Clock | None = None,
    ) -> None:
        self._delivery = delivery
        self._shards = range(shards)
        self._clock = clock or SystemClock()
        self._sources = ledger_streams(SESSION_EVENTS, shards)
        streams = RedisStreams(client)
        self._consumer = Consumer(
            streams,
            GROUP,
            consumer,
            lambda: self._sources,
            reclaim_idle_ms=take_over_ms,
            clock=self._clock,
        )
        self._next_timers = self._due_at = 0.0
        self._seldom = RateLimitedLog()
        streams.ensure_groups([GROUP], self._sources)

    def run(self, stop: threading.Event) -> None:
        """Handle events until told to stop."""
        while not stop.is_set():
            # The first event after a pause is handled at once. Events that follow closely are handled together.
            self.run_once(block_ms=self._wait_ms(), linger=lambda: stop.wait(LINGER_S))

    def _wait_ms(self) -> int:
        """Return the milliseconds to wait for an event: until the next timer is due. Under load timers are looked up
        now and then.
        """
        now = self._clock.monotonic()
        # What was handled since the last look may have set an earlier timer.
        until = min(self._next_timers, self._due_at)
        if now >= until:
            until = self._due_at = now + self._fire_timers() / 1000
            self._next_timers = now + TIMERS_EVERY_S
        return max(1, round((until - now) * 1000))

    def run_once(self, *, block_ms: int = 0, linger: Callable[[], object] = lambda: None) -> int:
        """Handle the events that are there, waiting up to ``block_ms`` for a first one; how many there were.

        They are acknowledged after ``linger``, so that what they set off is served first.
        """
        handled = 0
        for left_over in self._consumer.left_over(limit=BATCH):
            self._consumer.acknowledge(self._handle(left_over), delete=True)
            handled += len(left_over)
        entries = self._consumer.read([Portion(self._sources, BATCH)], block_ms=0 if handled else block_ms)
        if entries:
            done = self._handle(entries)
            linger()
            # No other group reads these streams.
            self._consumer.acknowledge(done, delete=True)
        return handled + len(entries)

    def _handle(self, entries: Sequence[Entry]) -> list[Entry]:
        """Handle events; return those that are done."""
        failpoint("callbacks.read")
        to_flush: dict[str, None] = {}
        known: dict[str, int] = {}
        stopped: dict[str, None] = {}
        done: list[Entry] = []
        for entry in entries:
            event = entry.extra
            session, parent = event.get("session", ""), event.get("parent", "")
            if not is_session_id(session) or (parent and not is_session_id(parent)):
                _log.warning("unknown-event", fields=event)
                done.append(entry)
                continue
            match event.get("event"):
                case "stop":
                    if not self._stop(session, event):
                        continue
                case "session_stop":
                    # A finished session had nothing queued. What is queued later emits an event of its own.
                    if event.get("state") != "finished":
                        to_flush[session] = None
                        if event.get("state") != "idle":
                            stopped[session] = None
                case "put":
                    to_flush[session] = None
                case other:
                    _log.warning("unknown-event", kind=other, session=session)
            done.append(entry)
            if parent:
                to_flush[parent] = None
                if (runs := event.get("runs", "")).isdecimal():
                    known[parent] = int(runs)
        self._delivery.flush(to_flush, known)
        self._close(stopped)
        failpoint("callbacks.handled")
        return done

    def _stop(self, session: str, event: Mapping[str, str]) -> bool:
        """End a session as an event says; False: it cannot be ended, and its event stays pending to be tried again."""
        state = _END.get(event.get("state", ""))
        try:
            self._delivery.ledger.stop(session, event.get("reason", ""), state=state or "stopped")
        except (redis.ResponseError, KeyringError) as error:
            if is_outage(error):
                raise
            if self._seldom.due(session):
                _log.error("stop-failed", session=session, error=str(error))
            return False
        failpoint("callbacks.stopped")
        return True

    def _close(self, stopped: Iterable[str]) -> None:
        for session in stopped:
            try:
                self._delivery.close(session)
            except Exception as error:
                if is_outage(error):
                    raise
                # Damaged records of one session must hold up no other; the sweep tries again.
                if self._seldom.due(session):
                    _log.error("close-failed", session=session, error=repr(error))

    def _fire_timers(self) -> int:
        """Flush the sessions whose deadline or window has passed; milliseconds until the next one is due."""
        ledger = self._delivery.ledger
        wait_ms = BLOCK_MS
        for shard in self._shards:
            try:
                for kind, session, in_ms in ledger.sweep.timers(shard, within_ms=BLOCK_MS):
                    if kind != "flush":
                        continue
                    # After one that was due it looks again: that may have set another.
                    wait_ms = min(wait_ms, in_ms)
                    if in_ms <= 0:
                        self._delivery.flush([session])
                        ledger.sweep.drop_due_timer(shard, kind, session)
            except redis.ResponseError as error:
                if is_outage(error):
                    raise
                if self._seldom.due(f"timers of shard {shard}"):
                    _log.error("timers-not-read", shard=shard, error=str(error))
        return max(1, wait_ms)
