"""The notifier: delivers the entries of the streams `notices` to each target at least once, any number of copies.

The consumer groups keep how often an entry was tried, and when last. So a killed copy loses nothing: another copy takes
over its entries, each when its next attempt is due. What was given up is among the dead letters.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import redis

from orchestrator.config.settings import Settings
from orchestrator.crashpoints import failpoint
from orchestrator.ledger import Item, Ledger
from orchestrator.ledger.large_text import Decrypted
from orchestrator.log import get_logger
from orchestrator.machine import isoformat
from orchestrator.notifier.targets import TIMEOUT_S, Target, targets_of
from orchestrator.policy.approval import read_request
from orchestrator.policy.sealed_text import ENCRYPTED, has_sealed
from orchestrator.redisdb.client import is_outage
from orchestrator.redisdb.scripts import Arg, Scripts
from orchestrator.streams import (
    NOTICES,
    Consumer,
    DeadLimits,
    Entry,
    Portion,
    RedisStreams,
    StreamId,
    consumer_name,
    dead_call,
    ledger_streams,
)

#: What happened, as transitions name it and as the setting `notify_events` does → type of its event.
EVENTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "question": "agent-orchestra.question.asked",
        "approval": "agent-orchestra.approval.requested",
        "finished": "agent-orchestra.session.finished",
        "failed": "agent-orchestra.session.failed",
        "stopped": "agent-orchestra.session.stopped",
        "dead": "agent-orchestra.callback.dead",
        "test": "agent-orchestra.test",
    }
)
SOURCE: Final = "/agent-orchestra"


@dataclass(frozen=True, kw_only=True)
class CloudEvent:
    """An event. The same entry makes the same event in every attempt, with the same id."""

    id: str
    type: str
    subject: str  #: the session
    time_ms: int
    data: Mapping[str, Any]

    def encode(self) -> bytes:
        """Return the event in JSON, as CloudEvents has it."""
        facts = {
            "specversion": "1.0",
            "id": self.id,
            "source": SOURCE,
            "type": self.type,
            "subject": self.subject,
            "time": isoformat(self.time_ms),
            "datacontenttype": "application/json",
            "data": dict(self.data),
        }
        return json.dumps(facts, ensure_ascii=True, separators=(",", ":")).encode()


def event_of(ledger: Ledger, shard: int, entry: str, fields: Mapping[str, str]) -> CloudEvent:
    """Return the event that an entry of the stream reports.

    Facts that the ledger has no more are left empty: a tree may expire before its notification is delivered.

    Raises:
        redis.RedisError: Redis is away.
    """
    what, session, about = fields.get("event", ""), fields.get("session", ""), fields.get("about", "")
    found = next(iter(ledger.find([session])), None)
    data: dict[str, Any] = {
        "session": session,
        "agent": found.agent if found else "",
        "title": shown(found.title) if found else "",
        "root": found.root if found else "",
    }
    if what == "question":
        item = ledger.item(session, about)
        data["question"] = {
            "id": about,
            "kind": item.kind if item else "",
            "text": shown(ledger.texts(session, [about]).get(about, "")),
            "context": _context(item),
            "reply": f"orchestra reply {about} TEXT",
        }
    elif what == "approval":
        data["approval"] = _approval(about, ledger.item(session, about))
    elif what == "dead":
        data["callbacks"] = int(about) if about.isdecimal() else 1
    if what not in ("question", "approval") and fields.get("reason"):
        # A reason is cut, and what is cut cannot be opened.
        data["reason"] = ENCRYPTED if has_sealed(fields["reason"]) else fields["reason"]
    return bare_event(shard, entry, fields, data)


def shown(text: str) -> str:
    """Return a text for receivers outside of the stack: nothing that is encrypted in the ledger."""
    return ENCRYPTED if isinstance(text, Decrypted) else text


def _context(item: Item | None) -> Any:
    if item is None:
        return None
    context = item.extra.get("context", "null")
    return ENCRYPTED if isinstance(context, Decrypted) else json.loads(context)


def _approval(approval: str, item: Item | None) -> dict[str, Any]:
    """Return the data of an approval for a person."""
    facts: dict[str, Any] = {}
    if item is not None and item.extra.get("encrypted"):
        facts = {"tool": ENCRYPTED}
    elif item is not None:
        request = read_request(approval, item.extra.get("context"))
        facts = {
            "tool": request.tool,
            "arguments": json.loads(request.arguments),
            "reason": request.reason,
            "digest": request.digest,
            "expires": isoformat(request.expires_ms) if request.expires_ms else None,
            "default": request.default,
        }
    return {
        "id": approval,
        **facts,
        "approve": f"orchestra approve {approval}",
        "deny": f"orchestra deny {approval}",
    }


def bare_event(
    shard: int, entry: str, fields: Mapping[str, str], data: Mapping[str, Any] | None = None
) -> CloudEvent:
    """Return the event without facts of the ledger."""
    what, session = fields.get("event", ""), fields.get("session", "")
    return CloudEvent(
        id=f"{shard:02x}-{entry}",
        type=EVENTS.get(what, f"agent-orchestra.{what}"),
        subject=session,
        time_ms=int(entry.partition("-")[0]),
        data={"session": session} if data is None else data,
    )


#: Seconds between two looks.
LOOK_S: Final = 0.5
#: Looks from one trimming of the streams to the next.
_TRIM_EVERY: Final = 20
#: Deliveries to one target at once.
AT_ONCE: Final = 4
#: Entries that wait for another attempt and are looked at in one go.
_PAGE: Final = 1000
#: Attempts to deliver one event to one target: about four hours with the waits between them.
ATTEMPTS: Final = 15
#: The longest wait between two attempts, in seconds.
_LONGEST_S: Final = 3600.0
#: Seconds beyond the time limit of a delivery after which another copy takes it over.
_MARGIN_S: Final = 5.0
#: The type of a dead letter that is a notification; in its stream the name of the target stands for the priority.
NOTIFICATION: Final = "notification"

_log = get_logger()


def group_of(target: Target) -> str:
    """Return the consumer group of a target."""
    return f"notify:{target.name}"


@dataclass(frozen=True)
class _Lane:
    """The way to one target: its consumer group, and the threads that deliver to it."""

    target: Target
    group: str
    consumer: Consumer
    pool: Executor


@dataclass(frozen=True, kw_only=True)
class Tries:
    """Bounds of the attempts to give one event to one target."""

    attempts: int = ATTEMPTS
    timeout_s: float = TIMEOUT_S
    backoff_s: float = 1


class Notifier:
    """A copy of the notifier."""

    def __init__(
        self,
        client: redis.Redis,
        ledger: Ledger,
        targets: Sequence[Target],
        settings: Settings,
        *,
        consumer: str,
        tries: Tries | None = None,
        pool: Callable[[int, str], Executor] = ThreadPoolExecutor,
    ) -> None:
        self._scripts = Scripts(client)
        self._dead_limits = DeadLimits.of(settings)
        self._streams = RedisStreams(client)
        self._ledger = ledger
        self._consumer = consumer
        self._sources = ledger_streams(NOTICES, settings.shards)
        self._tries = tries or Tries()
        self._events = frozenset(settings.notify_events)
        self._lanes = [self._lane(target, pool(AT_ONCE, f"notify-{target.name}")) for target in targets]
        self._in_flight: dict[tuple[str, StreamId, str], tuple[_Lane, Entry, Future[str]]] = {}
        self._looks = 0
        self._streams.ensure_groups([lane.group for lane in self._lanes], self._sources)

    def _lane(self, target: Target, pool: Executor) -> _Lane:
        consumer = Consumer(self._streams, group_of(target), self._consumer, lambda: self._sources)
        return _Lane(target, group_of(target), consumer, pool)

    def run(self, stop: threading.Event) -> None:
        """Deliver until told to stop. Another copy repeats the deliveries that are under way then."""
        try:
            while not stop.is_set():
                self.run_once()
                stop.wait(LOOK_S)
        finally:
            for lane in self._lanes:
                lane.pool.shutdown(wait=False, cancel_futures=True)

    def run_once(self) -> int:
        """Start the deliveries that are due and record those that ended; returns how many ended.

        Raises:
            redis.RedisError: Redis is away.
        """
        ended = self._record_ended()
        for lane in self._lanes:
            dead = lane.consumer.dead()
            for stream in self._sources:
                self._begin_due(lane, stream, dead)
                self._begin_new(lane, stream)
        if self._looks % _TRIM_EVERY == 0:
            self._streams.trim([lane.group for lane in self._lanes], self._sources)
            for lane in self._lanes:
                lane.consumer.tidy()
        self._looks += 1
        return ended

    def _room(self, lane: _Lane) -> int:
        return AT_ONCE - sum(group == lane.group for group, _, _ in self._in_flight)

    def _begin_new(self, lane: _Lane, stream: StreamId) -> None:
        if (room := self._room(lane)) > 0:
            for entry in lane.consumer.read([Portion([stream], room)]):
                self._begin(lane, entry)

    def _begin_due(self, lane: _Lane, stream: StreamId, dead: Collection[str]) -> None:
        """Start the next attempts that are due, also of deliveries that a dead copy had started."""
        for waiting in self._streams.pending(lane.group, stream, most=_PAGE):
            if self._room(lane) <= 0:
                return
            if (lane.group, stream, waiting.id) in self._in_flight:
                continue
            wait_s = self._wait_s(waiting.deliveries)
            if waiting.consumer != self._consumer and waiting.consumer not in dead:
                wait_s += self._tries.timeout_s + _MARGIN_S  # another copy may be at it
            wait_ms = round(wait_s * 1000)
            if waiting.idle_ms < wait_ms:
                continue
            taken = self._streams.claim(lane.group, self._consumer, stream, waiting.id, idle_ms=wait_ms)
            if taken is not None:
                self._begin(lane, taken._replace(deliveries=waiting.deliveries + 1))

    def _wait_s(self, tried: int) -> float:
        """Return the seconds from the beginning of one attempt to that of the next."""
        return min(_LONGEST_S, self._tries.backoff_s * 2.0 ** min(tried - 1, 20))

    def _begin(self, lane: _Lane, entry: Entry) -> None:
        if entry.extra.get("event") not in self._events:
            lane.consumer.acknowledge([entry])
            return
        event = self._event(entry)
        future = lane.pool.submit(lane.target.deliver, event.id, event.encode())
        self._in_flight[lane.group, entry.stream, entry.id] = lane, entry, future

    def _event(self, entry: Entry) -> CloudEvent:
        shard, facts = entry.stream.shard, entry.extra
        try:
            return event_of(self._ledger, shard, entry.id, facts)
        except Exception as error:
            if is_outage(error):
                raise
            # Damaged records of one session must not hold up the notifications of all others.
            _log.exception("notification-incomplete", session=facts.get("session", ""))
            return bare_event(shard, entry.id, facts)

    def _record_ended(self) -> int:
        """Record how deliveries ended: taken, to be tried again, or dead; returns how many ended."""
        ended = [key for key, (_, _, future) in self._in_flight.items() if future.done()]
        for key in ended:
            lane, entry, future = self._in_flight[key]
            error = future.exception()
            reason = f"{type(error).__name__}: {error}" if error is not None else future.result()
            failpoint("notifier.delivered")
            if reason:
                self._record_failure(lane, entry, reason)
            else:
                lane.consumer.acknowledge([entry])
            del self._in_flight[key]
        return len(ended)

    def _record_failure(self, lane: _Lane, entry: Entry, reason: str) -> None:
        shard, attempt = entry.stream.shard, entry.deliveries
        log = _log.bind(target=lane.target.name, event=f"{shard:02x}-{entry.id}")
        if attempt < self._tries.attempts:
            again_s = self._wait_s(attempt)
            log.warning("notification-failed", attempt=attempt, reason=reason, again_in_s=again_s)
            return
        log.error("notification-dead", attempts=attempt, reason=reason)
        fields: dict[str, Arg] = {
            "envelope": self._event(entry).encode(),
            "stream": str(StreamId(shard, NOTIFICATION, lane.target.name)),
            "entry": entry.id,
            "rule": "notification-undeliverable",
            "reason": reason,
            "attempts": attempt,
            # It has a share of the dead letters of its own: what strangers send drops none of it.
            "verified": 1,
            "sender": "notifier",
            "recipient": lane.target.name,
        }
        call = dead_call(entry, fields, group=lane.group, sender="notifier", limits=self._dead_limits)
        self._scripts.run("route_dead", *call)


def build_notifier(client: redis.Redis, settings: Settings) -> Notifier:
    """Return a notifier for the targets that the settings name.

    Raises:
        ConfigurationError: the file of the secret cannot be used.
    """
    return Notifier(
        client,
        # Without keys: encrypted text never goes to a target.
        Ledger(client),
        targets_of(settings),
        settings,
        consumer=consumer_name("notifier"),
    )
