"""Consumes `session_stop` events; any number of copies, each restartable at any moment.

An event is acknowledged last. What a dead copy left is taken over, and since the ledger decides and not the
event, an event handled twice, late or out of order does nothing wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import redis

from orchestrator.clock import Clock, SystemClock
from orchestrator.crashpoints import failpoint
from orchestrator.errors import KeyringError
from orchestrator.ids import is_session_id
from orchestrator.ledger import RunsSoFar
from orchestrator.ledger.decode import mapping, text
from orchestrator.log import Seldom, get_logger
from orchestrator.reconciler.delivery import Delivery
from orchestrator.redisdb import keys
from orchestrator.redisdb.client import is_outage
from orchestrator.redisdb.groups import GONE_MS, TIDY_EVERY_S, ensure_groups, forget_consumers

GROUP = "callbacks"
#: Events taken at once.
BATCH = 200
#: How long to wait for a first event, which is also how long a stop may go unnoticed.
BLOCK_MS = 500
#: Seconds in which further events are let come together, once there was one.
LINGER_S = 0.003
#: Seconds between two looks at the timers while there is no end of events.
RING_S = 0.05
#: Events that another copy has held for so long are taken over.
TAKE_OVER_MS = 5_000

#: What an event says of how a session is to end → the state that it ends in; else `stopped`.
_END: Mapping[str, Literal["stopped", "failed", "deleted"]] = {"failed": "failed", "deleted": "deleted"}

_log = get_logger()


class CallbackService:
    """One copy of the service."""

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
        self._redis = client
        self._delivery = delivery
        self._consumer = consumer
        self._streams = [keys.session_events(shard) for shard in range(shards)]
        self._take_over_ms = take_over_ms
        self._clock = clock or SystemClock()
        self._next_take_over = self._next_ring = self._due_at = 0.0
        self._next_tidy = self._clock.monotonic() + TIDY_EVERY_S
        self._seldom = Seldom()
        #: The streams that can be read.
        self._sound: list[str] = []
        self._find_streams()

    def run(self, stop: threading.Event) -> None:
        """Handle events until told to stop."""
        while not stop.is_set():
            # An event after a quiet time is handled at once; those that follow close are handled together.
            self.run_once(block_ms=self._retry_for_ms(), linger=lambda: stop.wait(LINGER_S))

    def _retry_for_ms(self) -> int:
        """How long to wait for an event: until the next timer is due; under load they are looked up now and then."""
        now = self._clock.monotonic()
        if now >= min(self._next_ring, self._due_at):
            self._due_at = now + self._ring() / 1000
            self._next_ring = now + RING_S
            return max(1, round((self._due_at - now) * 1000))
        # What was handled since may have set an earlier one.
        return max(1, round((min(self._next_ring, self._due_at) - now) * 1000))

    def run_once(self, *, block_ms: int | None = None, linger: Callable[[], object] = lambda: None) -> int:
        """Handle the events that are there, waiting up to ``block_ms`` for a first one; how many they were.

        They are acknowledged after ``linger``: nobody waits for that, and what they set off has the server first.
        """
        handled = self._take_over()
        if self._clock.monotonic() >= self._next_tidy:
            self.tidy()
            self._next_tidy = self._clock.monotonic() + TIDY_EVERY_S
        done: list[tuple[str, list[bytes]]] = []
        for stream, entries in self._read(None if handled else block_ms):
            done.append((stream, self._handle(entries)))
            handled += len(entries)
        if done:
            linger()
            self._acknowledge(done)
        return handled

    def tidy(self, *, gone_ms: int = GONE_MS) -> int:
        """Forget copies that were silent for so long and hold nothing; how many, counted for each stream."""
        return forget_consumers(self._redis, GROUP, self._streams, idle_ms=gone_ms)

    def _read(self, block_ms: int | None) -> list[tuple[str, list[tuple[bytes, Mapping[bytes, bytes]]]]]:
        """New events by stream. A group that is gone is made again, and one damaged stream keeps nobody from the others."""
        if not self._sound:
            self._wait(block_ms)
            self._find_streams()
            return []
        try:
            answer: Any = self._redis.xreadgroup(
                GROUP, self._consumer, dict.fromkeys(self._sound, ">"), count=BATCH, block=block_ms
            )
        except redis.ResponseError as error:
            if is_outage(error):
                raise
            self._find_streams()
            return []
        return _by_stream(answer)

    def _wait(self, block_ms: int | None) -> None:
        """With no stream to wait for, wait nevertheless."""
        threading.Event().wait((block_ms or 0) / 1000)

    def _find_streams(self) -> None:
        """Which streams can be read; their groups are made where they are missing, from the first event that is kept."""
        self._sound = []
        for stream in self._streams:
            try:
                ensure_groups(self._redis, [(stream, GROUP)])
            except redis.ResponseError as error:
                if is_outage(error):
                    raise
                # The sweep does what the events of this one would have set off.
                if self._seldom.due(stream):
                    _log.error("events-not-read", stream=stream, error=str(error))
                continue
            self._sound.append(stream)

    def _handle(self, entries: list[tuple[bytes, Mapping[bytes, bytes]]]) -> list[bytes]:
        """Do what events ask for; the ids of those that are done."""
        failpoint("callbacks.read")
        stirred: dict[str, None] = {}
        known: dict[str, RunsSoFar] = {}
        stopped: dict[str, None] = {}
        done: list[bytes] = []
        for entry, raw in entries:
            event = mapping(raw)
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
                    # One that has finished had nothing queued then, and what is put there later says so itself.
                    if event.get("state") != "finished":
                        stirred[session] = None
                        if event.get("state") != "idle":
                            stopped[session] = None
                case "put":
                    stirred[session] = None
                case other:
                    _log.warning("unknown-event", kind=other, session=session)
            done.append(entry)
            if parent:
                stirred[parent] = None
                root, runs = event.get("root", ""), event.get("runs", "")
                if is_session_id(root) and runs.isdecimal():
                    known[parent] = RunsSoFar(runs=int(runs), root=root, agent=event.get("agent", ""))
        self._delivery.flush(stirred, known)
        self._close(list(stopped))
        failpoint("callbacks.handled")
        return done

    def _acknowledge(self, done: Sequence[tuple[str, Sequence[bytes]]]) -> None:
        """Forget events: one group reads their streams, so what it has acknowledged nobody needs any more."""
        pipe = self._redis.pipeline(transaction=False)
        for stream, ids in done:
            if ids:
                pipe.xack(stream, GROUP, *ids)
                pipe.xdel(stream, *ids)
        for answer in pipe.execute(raise_on_error=False):
            # Of a stream that was spoilt meanwhile nothing is left to acknowledge.
            if isinstance(answer, Exception) and is_outage(answer):
                raise answer

    def _stop(self, session: str, event: Mapping[str, str]) -> bool:
        """End a session as an event says. One that cannot be ended stays pending, and is tried again and again."""
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

    def _close(self, stopped: list[str]) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for session in stopped:
            pipe.hget(keys.session(session), "state")
        states = pipe.execute(raise_on_error=False) if stopped else []
        for session, state in zip(stopped, states, strict=True):
            try:
                if isinstance(state, Exception):
                    raise state
                if text(state) in {"failed", "stopped", "deleted"}:
                    self._delivery.close(session)
            except Exception as error:
                if is_outage(error):
                    raise
                # Damaged records of one session must not end the service of all others; the sweep goes on trying.
                if self._seldom.due(session):
                    _log.error("close-failed", session=session, error=repr(error))

    def _ring(self) -> int:
        """Flush the sessions whose deadline or window has passed; milliseconds until the next one is due."""
        ledger = self._delivery.ledger
        wait_ms = BLOCK_MS
        for shard in range(len(self._streams)):
            try:
                for kind, session in ledger.due_timers(shard):
                    if kind == "flush":
                        self._delivery.flush([session])
                        ledger.drop_due_timer(shard, kind, session)
                wait_ms = min(wait_ms, ledger.ms_to_next_timer(shard, "flush", at_most=BLOCK_MS))
            except redis.ResponseError as error:
                if is_outage(error):
                    raise
                if self._seldom.due(keys.timers(shard)):
                    _log.error("timers-not-read", shard=shard, error=str(error))
        return max(1, wait_ms)

    def _take_over(self) -> int:
        """Now and then, take all that dead copies were handed and never acknowledged."""
        if self._clock.monotonic() < self._next_take_over:
            return 0
        self._next_take_over = self._clock.monotonic() + self._take_over_ms / 1000
        handled = 0
        self._find_streams()
        for stream in self._sound:
            start: Any = "0-0"
            while start is not None:
                try:
                    answer: Any = self._redis.xautoclaim(
                        stream, GROUP, self._consumer, self._take_over_ms, start_id=start, count=BATCH
                    )
                except redis.ResponseError as error:
                    if is_outage(error):
                        raise
                    break  # gone or spoilt in this moment: the next round sees to that
                start = answer[0] if answer[0] != b"0-0" else None
                entries = [(i, fields) for i, fields in answer[1] if fields]
                if entries:
                    self._acknowledge([(stream, self._handle(entries))])
                    handled += len(entries)
        return handled


def _by_stream(answer: Any) -> list[tuple[str, list[tuple[bytes, Mapping[bytes, bytes]]]]]:
    pairs = answer.items() if isinstance(answer, Mapping) else answer or []
    return [(text(stream), list(entries)) for stream, entries in pairs]
