"""The router: reads by priority, validates, acts by type. Any number of copies; each may die at any moment.

An entry is acknowledged in the same atomic step that carries it out, so that it is handled once in effect
however often it is handed out. What a dead router held is reclaimed and handled alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from orchestrator.clock import Clock
from orchestrator.crashpoints import reach
from orchestrator.dispatch import Dispatcher
from orchestrator.envelope.validate import Report
from orchestrator.errors import ServerUnavailable
from orchestrator.ledger import Dispatch, Ledger
from orchestrator.log import get_logger
from orchestrator.policy.retry import RetryEnd
from orchestrator.policy.routing import LAUNCHES
from orchestrator.redisdb import keys
from orchestrator.registry import AgentRegistry
from orchestrator.router.acts import Acts
from orchestrator.router.dependencies import FIRST_LOOK_MS, Dependencies, Held
from orchestrator.router.intake import Intake, reject
from orchestrator.router.letter import Letter, Rejection, attempt_of
from orchestrator.router.marking import Marking
from orchestrator.router.parking import Parked, Parking
from orchestrator.router.retries import AGENT_LOOK_MS, Patience, Retries
from orchestrator.router.steps import Act, Noted, Outcome
from orchestrator.router.undelivered import Undelivered
from orchestrator.streams import GROUPS, ROUTER_GROUP, Entry, RedisStreams, StreamId
from orchestrator.streams.priority import BLOCK_MS, PriorityReader

#: Deliveries to a router of its own after which an entry is poison.
POISON_DELIVERIES = 3
_RECLAIM_EVERY_S = 2.0
#: Entries taken over in one round.
_RECLAIM_AT_ONCE = 64
#: Messages in a round below which the next one is given so many seconds to fill, unless it was quiet for so long.
_FEW = 64
_LINGER_S = 0.002
_QUIET_S = 0.008
#: How often to look at what waits, at the least while anything does.
_WAKE_EVERY_S = 0.25
_IDLE_WAKE_EVERY_S = 1.0
#: Consumers that were silent for so long are taken off the books.
_GONE_MS = 3_600_000
#: Entries that are read together before they are judged, if they have at most so many octets each.
_TOGETHER = 16
_SMALL = 65_536
_TIDY_EVERY_S = 600.0


@dataclass
class Handled:
    """What one round did."""

    done: int = 0
    duplicates: int = 0
    dead: int = 0
    reclaimed: int = 0
    parked: int = 0
    released: int = 0
    dispatched: list[str] = field(default_factory=list)


class Router:
    """One router."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        streams: RedisStreams,
        intake: Intake,
        acts: Acts,
        marking: Marking,
        undelivered: Undelivered,
        retries: Retries,
        parking: Parking,
        dependencies: Dependencies,
        dispatcher: Dispatcher,
        agents: AgentRegistry,
        consumer: str,
        sources: Sequence[StreamId],
        clock: Clock,
        reclaim_idle_ms: int,
    ) -> None:
        self._ledger = ledger
        self._streams = streams
        self._intake = intake
        self._acts = acts
        self._marking = marking
        self._undelivered = undelivered
        self._retries = retries
        self._parking = parking
        self._dependencies = dependencies
        self._clock = clock
        self._dispatcher = dispatcher
        self._agents = agents
        self._consumer = consumer
        self._sources = list(sources)
        self._reclaim_idle_ms = reclaim_idle_ms
        self._reader = PriorityReader(streams, group=ROUTER_GROUP, consumer=consumer, sources=self._sources)
        self._next_reclaim = self._next_wake = 0.0
        #: Whether any message waited when it was last looked; a moment old.
        self._something_waits = True
        self._next_tidy = time.monotonic() + _TIDY_EVERY_S
        # The audit's group too: what is published before its writer first runs must not be trimmed.
        self._streams.ensure_groups(GROUPS, self._sources)

    def run(self, stop: threading.Event) -> None:
        """Route until told to stop."""
        while not stop.is_set():
            began_at = time.monotonic()
            handled = self.run_once(block_ms=self._patience_ms())
            # A message after a quiet time is routed at once; those that follow close are routed together.
            if 0 < handled.done < _FEW and time.monotonic() - began_at < _QUIET_S:
                stop.wait(_LINGER_S)

    def _patience_ms(self) -> int:
        """How long to wait for news: no longer than until a message that waits is due."""
        return max(1, min(BLOCK_MS, round((self._next_wake - time.monotonic()) * 1000)))

    def run_once(self, *, block_ms: int = 0) -> Handled:
        """One round: what was left by dead routers, what is new; waits up to ``block_ms`` when nothing is."""
        handled = Handled()
        now = time.monotonic()
        if now >= self._next_reclaim:
            self.reclaim(handled)
        if now >= self._next_wake or not block_ms:
            self._wake(handled)
        if now >= self._next_tidy:
            self._streams.forget(ROUTER_GROUP, self._sources, idle_ms=_GONE_MS)
            self._next_tidy = now + _TIDY_EVERY_S
        self._handle(self._reader.next_round(block_ms=block_ms), handled)
        return handled

    def reclaim(self, handled: Handled) -> None:
        """Take over what dead routers held, one entry at a time, so that a crash condemns nobody's neighbour.

        The most urgent first, and not all of it at once: what is new does not wait for what was left over.
        """
        for stream in self._sources:
            while entries := self._streams.reclaim(
                ROUTER_GROUP, self._consumer, [stream], idle_ms=self._reclaim_idle_ms, limit=1
            ):
                handled.reclaimed += 1
                entry = entries[0]
                # The first delivery was in a batch and says nothing of this entry.
                if entry.deliveries - 1 > POISON_DELIVERIES:
                    reason = (
                        f"it was handed out alone {entry.deliveries - 2} times and its router died each time"
                    )
                    self._reject(entry, reject("poison", reason), handled)
                else:
                    self._handle([entry], handled)
                if handled.reclaimed >= _RECLAIM_AT_ONCE:
                    self._next_reclaim = 0.0
                    return
        self._next_reclaim = time.monotonic() + _RECLAIM_EVERY_S

    def _handle(self, entries: Sequence[Entry], handled: Handled) -> None:
        if entries:
            reach("router.read")
        letters: list[Letter] = []
        for entry, opened in self._open(entries):
            match self._judge(opened):
                case Letter() as letter:
                    letters.append(letter)
                case Rejection() as rejection:
                    self._reject(entry, rejection, handled)
                case (letter, held):
                    self._hold(letter, held, handled)
        runs: list[Dispatch] = []
        done: list[Letter] = []
        for letter, outcome in zip(letters, self._carry_out(letters), strict=True):
            match outcome.kind:
                case "done":
                    handled.done += 1
                    done.append(letter)
                    if outcome.dispatch is not None:
                        runs.append(outcome.dispatch)
                case "duplicate":
                    handled.duplicates += 1
                    get_logger().info("message-duplicate", message=letter.id, entry=letter.entry.id)
                case _:
                    assert outcome.rejection is not None
                    self._reject(letter.entry, outcome.rejection, handled)
        if runs:
            reach("router.acted")
        self._dispatch(runs, handled)
        if self._something_waits and self._dependencies.told(done):
            self._next_wake = 0.0

    def _judge(self, letter: Letter | Rejection) -> Letter | Rejection | tuple[Letter, Held]:
        """A letter to be carried out now, a rejection, or a letter that has to wait for other tasks."""
        if isinstance(letter, Rejection):
            return letter
        rejection = self._unproven_wait(letter) or self._retries.late(letter)
        if rejection is not None or letter.type != "task-delegation":
            return rejection or letter
        held = self._dependencies.judge(letter, timeout_s=self._retries.policy(letter.message)[2])
        return (letter, held) if isinstance(held, Held) else held or letter

    def _unproven_wait(self, letter: Letter) -> Rejection | None:
        """A rejection if an old message only says that it waited; None: it is young, or the mark bears it out."""
        if not letter.entry.extra or not self._intake.too_old(letter.message):
            return None
        mark: Any = self._ledger.redis.get(keys.seen(letter.entry.stream.shard, letter.id))
        if mark is not None and mark.decode() == letter.entry.id:
            return None
        reason = (
            f"the message is dated {letter.message.header.timestamp} and did not wait here; send a new one"
        )
        return reject("too-old", reason, letter.message)

    def _open(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Letter | Rejection]]:
        """What each entry holds, in their order.

        A few small ones are read before the first of them is judged: the same work done in a row is quicker by a
        twentieth. What is large is read when its turn comes, as what is read takes many times its size.
        """
        for start in range(0, len(entries), _TOGETHER):
            part = entries[start : start + _TOGETHER]
            small = [self._read(entry) if len(entry.data or b"") <= _SMALL else None for entry in part]
            for entry, report in zip(part, small, strict=True):
                yield entry, self._open_read(entry, report or self._read(entry))

    def _read(self, entry: Entry) -> Report | Rejection | None:
        try:
            return self._intake.read(entry)
        except Exception as error:  # noqa: BLE001 - nothing a message holds may leave the loop as an exception
            return _broken(entry, error)

    def _open_read(self, entry: Entry, report: Report | Rejection | None) -> Letter | Rejection:
        if isinstance(report, Rejection):
            return report
        try:
            return self._intake.judge(entry, report)
        except (RedisConnectionError, RedisTimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return _broken(entry, error)

    def _carry_out(self, letters: Sequence[Letter]) -> list[Outcome]:
        """All steps in one round trip; the answers decide.

        A letter that follows upon a launch in the same round goes in a second one, when the launch is done.
        """
        outcomes: list[Outcome] = []
        while letters:
            now, letters = _independent(letters)
            outcomes += self._carry_out_at_once(now)
        return outcomes

    def _carry_out_at_once(self, letters: Sequence[Letter]) -> list[Outcome]:
        batch = self._ledger.scripts.batch()
        self._acts.prepare(letters)
        outcomes: dict[tuple[StreamId, str], Outcome] = {}
        noted: list[Letter] = []
        acts: list[tuple[int, Letter, Act]] = []
        for letter in letters:
            step = self._acts.act(letter)
            if isinstance(step, Act):
                for command in step.before:
                    batch.command(*command)
                batch.script(step.script, step.keys, step.args)
                acts.append((len(batch) - 1, letter, step))
            elif isinstance(step, Noted):
                noted.append(letter)
            else:
                outcomes[letter.place] = step.outcome
        calls = self._marking.add(batch, noted)
        answers = batch.execute()
        for place, letter, act in acts:
            fault = self._fault(answers[place], act.script, letter)
            outcomes[letter.place] = fault or act.read(answers[place])
        for place, part in calls:
            for letter, outcome in zip(part, self._read_marking(answers[place], part), strict=True):
                outcomes[letter.place] = outcome
        return [outcomes[letter.place] for letter in letters]

    def _read_marking(self, answer: object, letters: Sequence[Letter]) -> list[Outcome]:
        if not isinstance(answer, Exception):
            return self._marking.read(answer, letters)
        return [fault for letter in letters if (fault := self._fault(answer, "route_done", letter))]

    def _fault(self, answer: object, script: str, letter: Letter) -> Outcome | None:
        """What it means for a letter that its call failed; None: it did not."""
        if not isinstance(answer, Exception):
            return None
        if not isinstance(answer, redis.ResponseError):
            raise answer
        get_logger().error("act-failed", script=script, message=letter.id, error=str(answer))
        rejection = reject("internal-error", f"{script}: {answer}", letter.message)
        return Outcome(kind="rejected", rejection=rejection)

    def _reject(self, entry: Entry, rejection: Rejection, handled: Handled) -> None:
        """Let a message wait for what it needs or for its next attempt, or give it up."""
        patience = self._retries.patience(entry, rejection)
        if patience is not None:
            self._park(entry, rejection, handled, patience=patience, attempt=attempt_of(entry))
            return
        decision = self._retries.decide(entry, rejection)
        if decision.at_ms is not None:
            attempt = attempt_of(entry) + 1
            self._park(entry, rejection, handled, due_ms=decision.at_ms, attempt=attempt)
            return
        exhausted = decision.end in {RetryEnd.ATTEMPTS, RetryEnd.EXPIRATION}
        handled.dead += self._undelivered.bury(entry, rejection, exhausted=exhausted) is not None

    def _park(
        self,
        entry: Entry,
        rejection: Rejection,
        handled: Handled,
        *,
        attempt: int,
        due_ms: int = 0,
        patience: Patience | None = None,
    ) -> None:
        assert rejection.message is not None
        now_ms = self._clock.now_ms()
        due_ms = due_ms if patience is None else patience.due_ms
        handled.parked += self._parking.park(
            entry,
            rejection.message,
            due_ms=due_ms,
            attempt=attempt,
            now_ms=now_ms,
            since_ms=None if patience is None else patience.since_ms,
            rule=rejection.rule,
            reason=rejection.reason,
            agent="" if patience is None else patience.agent,
            until_ms=0 if patience is None else patience.until_ms,
        )
        self._something_waits = True
        reach("router.parked")
        self._next_wake = min(self._next_wake, time.monotonic() + max(0, due_ms - now_ms) / 1000)
        get_logger().info(
            "message-parked", stream=str(entry.stream), entry=entry.id, rule=rejection.rule, due_ms=due_ms
        )

    def _hold(self, letter: Letter, held: Held, handled: Handled) -> None:
        now_ms = self._clock.now_ms()
        handled.parked += self._parking.park(
            letter.entry,
            letter.message,
            due_ms=now_ms + FIRST_LOOK_MS,
            attempt=letter.attempt,
            now_ms=now_ms,
            since_ms=held.since_ms,
            rule="",
            reason=held.reason,
            tasks=held.tasks,
        )
        self._something_waits = True
        self._next_wake = min(self._next_wake, time.monotonic() + FIRST_LOOK_MS / 1000)

    def _wake(self, handled: Handled) -> None:
        """Put back into their streams what has waited long enough, and what something has happened for."""
        now_ms = self._clock.now_ms()
        due, next_ms = self._parking.due(now_ms)
        tasks = [parked for parked in due if parked.tasks]
        stirred = dict(zip((t.id for t in tasks), self._dependencies.stirred(tasks), strict=True))
        later: dict[Parked, int] = {}
        for parked in due:
            if parked.agent and now_ms < parked.until_ms and self._agents.get(parked.agent) is None:
                later[parked] = min(parked.until_ms, now_ms + AGENT_LOOK_MS)
            elif stirred.get(parked.id, True):
                handled.released += self._parking.release(parked)
            else:
                later[parked] = now_ms + self._dependencies.look_again_ms(parked)
        self._parking.put_off(later)
        self._something_waits = next_ms is not None or bool(due)
        # What there is more of than one look takes in goes on after this round.
        more = next_ms is not None and next_ms <= now_ms
        pause_s = _WAKE_EVERY_S if self._something_waits else _IDLE_WAKE_EVERY_S
        self._next_wake = 0.0 if more else time.monotonic() + pause_s

    def _dispatch(self, runs: Sequence[Dispatch], handled: Handled) -> None:
        """Send runs to workers; what a foreign program runs is at work as soon as it can read of it."""
        sends = []
        for run in runs:
            record = self._agents.get(run.agent)
            if record is not None and record.foreign:
                self._ledger.take_foreign(run)
            elif record is not None:
                sends.append((run, record.queue))
        if not sends:
            return
        try:
            self._dispatcher.send_all(sends)
        except ServerUnavailable as error:
            # The ledger holds them as queued; the sweep sends them when the broker is back.
            get_logger().warning("dispatch-failed", error=str(error), runs=len(sends))
            return
        reach("router.dispatched")
        handled.dispatched += [run.run for run, _ in sends]


def _broken(entry: Entry, error: Exception) -> Rejection:
    get_logger().exception("intake-failed", stream=str(entry.stream), entry=entry.id)
    return reject("internal-error", f"{type(error).__name__}: {error}")


def _independent(letters: Sequence[Letter]) -> tuple[Sequence[Letter], Sequence[Letter]]:
    """The longest beginning in which no letter follows upon a launch among them, and the rest."""
    launches: set[str] = set()
    for number, letter in enumerate(letters):
        if launches and any(ref.lower() in launches for ref in letter.message.header.conversation_chain):
            return letters[:number], letters[number:]
        if letter.type in LAUNCHES:
            launches.add(letter.id)
    return letters, []
