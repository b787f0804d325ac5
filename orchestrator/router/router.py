"""The router: reads by priority, validates, carries out by type. Any number of copies; each may die at any moment.

An entry is acknowledged in the same atomic step that carries it out, so that it is handled once in effect
however often it is handed out. What a dead router held is reclaimed and handled alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import redis

from orchestrator import machine
from orchestrator.agents.registry import AgentRegistry
from orchestrator.crashpoints import failpoint
from orchestrator.dispatch import Dispatcher
from orchestrator.errors import ServerUnavailable
from orchestrator.ledger import Ledger, RunRef
from orchestrator.log import get_logger
from orchestrator.policy.retry import RetryEnd
from orchestrator.reconciler.delivery import hand_over
from orchestrator.redisdb.all_keys import SharedKeys
from orchestrator.redisdb.client import is_outage, refuses_everything
from orchestrator.router.batching import RefusalBuffer, ReportBuffer
from orchestrator.router.deadletters.dead_lettering import DeadLettering
from orchestrator.router.delayed.redelivery import Redelivery, Retries
from orchestrator.router.execution import Execution
from orchestrator.router.external import Outboxes
from orchestrator.router.external.outboxes import LOOK_MS
from orchestrator.router.received import ReceivedMessage, Rejection
from orchestrator.router.validation.admission import Admission
from orchestrator.router.validation.validator import reject
from orchestrator.streams import GROUPS, OUTBOX, ROUTER_GROUP, Consumer, Entry, RedisStreams, StreamId
from orchestrator.streams.priority import BLOCK_MS, PriorityReader

#: Deliveries to a router of its own after which an entry is poison.
POISON_DELIVERIES = 3
#: Entries taken over in one round.
_RECLAIM_AT_ONCE = 64
#: Messages in a round below which the next one is given so many seconds to fill, unless it was quiet for so long.
_FEW = 64
_LINGER_S = 0.002
_QUIET_S = 0.008


@dataclass
class Handled:
    """Counts of one round."""

    done: int = 0
    duplicates: int = 0
    dead: int = 0
    reclaimed: int = 0
    parked: int = 0
    #: Left pending, because a key that they need was overwritten.
    held: int = 0
    released: int = 0
    dispatched: list[str] = field(default_factory=list)


class Router:
    """A router."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        streams: RedisStreams,
        outboxes: Outboxes,
        admission: Admission,
        execution: Execution,
        retries: Retries,
        redelivery: Redelivery,
        dead_lettering: DeadLettering,
        dispatcher: Dispatcher,
        agents: AgentRegistry,
        consumer: str,
        sources: Sequence[StreamId],
        shared: SharedKeys,
        reclaim_idle_ms: int,
    ) -> None:
        self._ledger = ledger
        self._outboxes = outboxes
        self._admission = admission
        self._execution = execution
        self._retries = retries
        self._redelivery = redelivery
        self._dead_lettering = dead_lettering
        self._dispatcher = dispatcher
        self._agents = agents
        self._shared = shared
        self._consumer = Consumer(
            streams,
            ROUTER_GROUP,
            consumer,
            lambda: [*sources, *outboxes.sources],
            reclaim_idle_ms=reclaim_idle_ms,
        )
        self._reader = PriorityReader(self._consumer, sources)
        self._report_buffer = ReportBuffer()
        self._refused = RefusalBuffer()
        # The audit's group too: what is published before its writer first runs must not be trimmed.
        streams.ensure_groups(GROUPS, sources)

    def run(self, stop: threading.Event) -> None:
        """Route until told to stop."""
        while not stop.is_set():
            began_at = machine.monotonic()
            handled = self.run_once(block_ms=self._wait_ms())
            # A message after a quiet time is routed at once; those that follow close are routed together.
            if 0 < handled.done < _FEW and machine.monotonic() - began_at < _QUIET_S:
                stop.wait(_LINGER_S)
        self._route_buffered(self._report_buffer.all(), Handled())
        while self._refused:
            self._give_up(Handled())

    def _wait_ms(self) -> int:
        """Return how long to wait for new entries, in milliseconds: until a delayed message is due; 1 while there is
        work.
        """
        if self._refused:
            return 1
        most = LOOK_MS if self._outboxes.sources else BLOCK_MS
        return max(1, min(most, round((self._redelivery.next_look - machine.monotonic()) * 1000)))

    def run_once(self, *, block_ms: int = 0) -> Handled:
        """Run one round: entries of dead routers, then new ones; wait up to ``block_ms`` if there are none."""
        handled = Handled()
        self._outboxes.refresh()
        self._take_over(handled)
        if machine.monotonic() >= self._redelivery.next_look or not block_ms:
            with self._named_elsewhere():
                handled.released += self._redelivery.release()
        self._next_round(handled, block_ms=block_ms)
        return handled

    def _next_round(self, handled: Handled, *, block_ms: int) -> None:
        """Handle what is new, and what was buffered long enough."""
        report_buffer = self._report_buffer
        entries = self._reader.next_round(block_ms=report_buffer.wait_ms(block_ms))
        said = self._outboxes.read(self._consumer.name, most=self._reader.lowest_share)
        self._outboxes.collect(said)
        # A delayed task may wait for a report.
        at_once = not block_ms or self._redelivery.something_waits
        self._handle(entries if at_once else report_buffer.put(entries), handled)
        self._route_buffered(report_buffer.all() if at_once else report_buffer.due(), handled)
        if self._refused and (len(entries) + len(said) < _FEW or self._refused.full):
            self._give_up(handled)
        while self._refused and not block_ms:
            self._give_up(handled)

    def _route_buffered(self, entries: Sequence[Entry], handled: Handled) -> None:
        """Handle what was buffered. If the server goes away meanwhile it stays buffered, as nothing is done twice."""
        if entries:
            self._handle(entries, handled)
            self._report_buffer.clear()

    def _take_over(self, handled: Handled) -> None:
        """Take over what dead routers held, one entry at a time, so that a crash counts against no other entry.

        The most urgent first, and not all of it at once: what is new does not wait for what was left over.
        """
        for (entry,) in self._consumer.left_over(limit=1):
            handled.reclaimed += 1
            # The first delivery was in a batch and does not count against this entry.
            if entry.stream.type == OUTBOX:
                self._outboxes.collect([entry], unread=entry.deliveries - 1 > POISON_DELIVERIES)
            elif entry.deliveries - 1 > POISON_DELIVERIES:
                reason = f"it was handed out alone {entry.deliveries - 2} times and its router died each time"
                self._reject(entry, reject("poison", reason), handled)
            else:
                self._handle_alone(entry, handled)
            if handled.reclaimed >= _RECLAIM_AT_ONCE:
                return

    def _handle_alone(self, entry: Entry, handled: Handled) -> None:
        """Handle an entry that was left over. If Redis fails during a delivery, the delivery does not count against the entry."""
        held = handled.held
        try:
            self._handle([entry], handled)
            self._give_up(handled)
            if handled.held > held:
                self._consumer.uncount(entry)
        except (redis.RedisError, ServerUnavailable) as error:
            # Any other refusal is about this entry, which would end one router after the other.
            if is_outage(error) or refuses_everything(error):
                with contextlib.suppress(redis.RedisError):
                    self._consumer.uncount(entry)
            raise

    @contextlib.contextmanager
    def _named_elsewhere(
        self, handled: Handled | None = None, entries: Sequence[Entry] = ()
    ) -> Iterator[None]:
        """Go on without what cannot be done because a shared key was overwritten; the signs of life name the key.

        The entries stay pending, and are taken over again and again until the key is what it was.
        """
        try:
            yield
        except redis.ResponseError as error:
            if not self._shared.hinder(error):
                raise
            if handled is not None:
                handled.held += len(entries)

    def _handle(self, entries: Sequence[Entry], handled: Handled) -> None:
        """Handle entries together; or each alone, where a shared key was overwritten that some of them need."""
        before = handled.held
        with self._named_elsewhere(handled, entries):
            self._handle_together(entries, handled)
        if handled.held > before and len(entries) > 1:
            handled.held = before
            for entry in entries:
                self._handle([entry], handled)

    def _handle_together(self, entries: Sequence[Entry], handled: Handled) -> None:
        if not entries:
            return
        failpoint("router.read")
        messages: list[ReceivedMessage] = []
        for entry, verdict in self._admission.admit(entries):
            match verdict:
                case ReceivedMessage() as received:
                    messages.append(received)
                case Rejection(trusted=False) as rejection:
                    self._refused.add(entry, rejection)
                case Rejection() as rejection:
                    self._reject(entry, rejection, handled)
                case (received, blocked):
                    handled.parked += self._redelivery.block(received, blocked)
        runs: list[RunRef] = []
        done: list[ReceivedMessage] = []
        for received, outcome in zip(messages, self._execution.carry_out(messages), strict=True):
            match outcome.kind:
                case "done":
                    handled.done += 1
                    done.append(received)
                    if outcome.dispatch is not None:
                        runs.append(outcome.dispatch)
                case "duplicate":
                    handled.duplicates += 1
                    get_logger().info("message-duplicate", message=received.id, entry=received.entry.id)
                case _:
                    assert outcome.rejection is not None
                    self._reject(received.entry, outcome.rejection, handled)
        if runs:
            failpoint("router.acted")
        self._dispatch(runs, handled)
        self._redelivery.look_at_waiters(done)

    def _reject(self, entry: Entry, rejection: Rejection, handled: Handled) -> None:
        """Let a message wait for what it needs or for its next attempt, or give it up."""
        end = self._delay(entry, rejection, handled)
        if end is not None:
            exhausted = end in {RetryEnd.ATTEMPTS, RetryEnd.EXPIRATION}
            handled.dead += self._dead_lettering.mark_dead([(entry, rejection)], exhausted=exhausted)

    def _delay(self, entry: Entry, rejection: Rejection, handled: Handled) -> RetryEnd | None:
        """Let a message wait for what it needs or for its next attempt; why there is none, or None: it waits."""
        wait = self._retries.wait(entry, rejection)
        if isinstance(wait, RetryEnd):
            return wait
        handled.parked += self._redelivery.wait(entry, rejection, wait)
        return None

    def _give_up(self, handled: Handled) -> None:
        """Give up the first of the refused entries without a trusted sender; what waits for a key waits."""
        refused = self._refused.first()
        with self._named_elsewhere(handled, [entry for entry, _ in refused]):
            with self._redelivery.together():
                dead = [refusal for refusal in refused if self._delay(*refusal, handled) is not None]
            handled.dead += self._dead_lettering.mark_dead(dead)
        self._refused.drop(len(refused))

    def _dispatch(self, runs: Sequence[RunRef], handled: Handled) -> None:
        """Tell workers of runs; the runs of external programs count as taken."""
        ready = hand_over(runs, ledger=self._ledger, agents=self._agents)
        if not ready:
            return
        try:
            self._dispatcher.wake((run.agent, queue) for run, queue in ready if run.wake)
        except ServerUnavailable as error:
            # The ledger has them ready; the sweep wakes workers when the broker is back.
            get_logger().warning("notify-failed", error=str(error), runs=len(ready))
            return
        failpoint("router.dispatched")
        handled.dispatched += [run.run for run, _ in ready]
